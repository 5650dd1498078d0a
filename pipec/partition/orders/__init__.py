"""Linear orders of a DAG, in which cuts are prefixes.

`linear` holds the greedy and depth-first orders, of which the best one is optimal on 12 of 13
published workloads; one from the end is within 1.4 % of the bound on the series-parallel rows of
``benchmarks.partition scaling`` (10,000 nodes, 64 devices).
"""
