"""The executor: runs the schedule of a plan, in one process or one process per device."""
