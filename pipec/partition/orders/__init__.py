"""Linear orders of a DAG, in which cuts are prefixes.

`linear` holds the given order and depth-first ones: rows ``workloads`` and ``planner`` of
``benchmarks.partition``; one from the end is within 1.4 % of the bound on the series-parallel rows
of ``scaling`` (10,000 nodes, 64 devices).
"""
