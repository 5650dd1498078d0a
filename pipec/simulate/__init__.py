"""Simulation: a schedule and its times in, a timeline out; no torch here.

```text
simulate.simulate(schedule, times, memory=None) -> Timeline     raises if it deadlocks
times.Times.uniform(stages, F=1, B=2, comm=0.1), Times.of_stages(F=[...], B=[...])
memory.Memory(weights=[...], gradients=..., optimizer=..., saved=...)   bytes per stage
Timeline: seconds, bubble, busy, lane_use, peak_in_flight, weight_versions,
          memory_curves, peak_bytes, critical_path, to_json
```
"""
