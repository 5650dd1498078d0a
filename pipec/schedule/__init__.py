"""Schedules: actions, generators, and the one rule of who waits for whom; no torch here.

```text
registry.generate("1f1b", stages=4, microbatches=8) -> Schedule      names(): what is installed
build.build(name, rows, M)                          a user's own compute rows -> Schedule
offload.insert_offload, steps.insert_reduce, steps.insert_steps, comm.insert_comm
                                                    Schedule -> Schedule, in this order
channels.value(name, src, dst, nbytes, depth=2)     a value's channel and its gradient's
dependencies.dependencies(schedule)                 who waits for whom
lanes.lanes(schedule)                               what runs side by side
json_form, csv_form                                 to_json/from_json, to_csv/from_csv
```
"""
