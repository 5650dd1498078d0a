"""PipeDream's planner: replicated stages over a hierarchy of links.

The rows of ``benchmarks.partition planner``.
"""
