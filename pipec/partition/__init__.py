"""Partitioning: pure algorithms on arrays; no torch here.

The public interface, each imported from its own module::

    from pipec.partition.costgraph import CostGraph, Value, cost_graph
    from pipec.cluster.cluster import Link
    from pipec.partition.devices import Device
    from pipec.partition.solve import solve_contiguous
    from pipec.partition.result import CutResult

    graph = cost_graph(
        names, {"gpu": seconds}, [Value(producer, consumers, bytes=b, gradient_bytes=g), ...],
        weight_bytes=w, activation_bytes=a, group=same_number_stays_together,
    )
    cut = solve_contiguous(
        graph, [Device("gpu", memory_bytes=80e9)] * 4, links=Link(25e9, 5e-6)
    )
    cut.stage          # stage of every node, along the pipeline
    cut.device_order   # device of every stage
    cut.max_load, cut.lower_bound, cut.gap, cut.proven, cut.loads, cut.memory_bytes, cut.method

    from pipec.partition.chunks.solve import solve_chunks        # several chunks per device
    from pipec.partition.replicas.plan import plan_replicated   # PipeDream: replicas, hierarchy
    from pipec.partition.formats.workload import read_workload    # cost graphs from files

``exactly=True`` (the default) gives every device a stage; ``exactly=False`` lets devices stay
empty. ``free_order=True`` also chooses the order of unlike devices.
"""
