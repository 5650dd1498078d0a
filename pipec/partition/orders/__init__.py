"""Linear orders of a DAG, in which cuts are prefixes.

`linear` holds the greedy and depth-first orders, of which the best one is optimal on 12 of 13
published workloads. `decompose`, `branch_tree`, `branch_cuts` and `mixture` are for the
series-parallel rows of ``benchmarks.partition scaling``.
"""
