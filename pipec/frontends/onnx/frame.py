"""The scope of nodes (the graph, the body of a function, a subgraph), and what they read."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from onnx import FunctionProto, GraphProto, NodeProto

from pipec.frontends.onnx.values import Value

FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a model-local function."""


@dataclass(frozen=True)
class Frame:
    """What the nodes of one scope see.

    Attributes:
        env: Value name to value.
        opsets: Operator domain to the version that counts here.
        functions: Functions that the model file brings along.
        path: Path of the node that the scope belongs to; empty for the model's graph.
    """

    env: MutableMapping[str, Value]
    opsets: Mapping[str, int]
    functions: Mapping[FunctionKey, FunctionProto]
    path: str = ""

    def version(self, domain: str) -> int:
        """Opset version of an operator domain here; 1 where the file does not say."""
        return self.opsets.get(shorten_domain(domain), 1)

    def inner(self, path: str) -> "Frame":
        """The scope of a subgraph: sees this one's names, keeps its own to itself."""
        return Frame(ChainMap({}, self.env), self.opsets, self.functions, path)


def shorten_domain(domain: str) -> str:
    """The operator domain with the long name of the standard one made short.

    Example:
        >>> shorten_domain("ai.onnx"), shorten_domain("ai.onnx.ml")
        ('', 'ai.onnx.ml')
    """
    return "" if domain == "ai.onnx" else domain


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
