"""Several chunks per device: the rows of ``benchmarks.partition chunks``, `model` proves six."""
