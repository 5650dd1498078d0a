"""What no cut can beat: exact reductions, work bounds, and all ideals in the windows they leave.

These prove every row of ``benchmarks.partition workloads``.
"""
