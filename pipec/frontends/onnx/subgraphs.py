"""What the subgraphs of a node read from outside of them."""

from collections.abc import Iterator

from onnx import GraphProto, NodeProto


def reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, free names of its subgraphs included."""
    yield from (name for name in node.input if name)
    yield from free_names(node)


def free_names(node: NodeProto) -> Iterator[str]:
    """Names that the subgraphs of a node read and do not define."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from _free(graph)


def _free(graph: GraphProto) -> Iterator[str]:
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (o.name for o in graph.output if o.name not in own)
