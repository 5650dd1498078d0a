"""The incumbent: dynamic programs over families of cuts.

`frontier` is the program, `family` what it runs over, `cutting` the orders it is run on: the rows
of ``benchmarks.partition workloads`` and ``scaling``. `improve` looks around known cuts (rows
``generated``, random DAGs).
"""
