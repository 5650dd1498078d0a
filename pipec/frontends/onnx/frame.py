"""The scope of one list of nodes: the model's graph, a function's body, or a subgraph."""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from onnx import FunctionProto

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
