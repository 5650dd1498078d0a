"""The schedules that ship with pipec: one function each, registered as entry points."""
