"""What a lowering sees of its node, and the table that lowerings register in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto
from torch import Tensor

from pipec.frontends.onnx.frame import Frame
from pipec.frontends.onnx.refusals import Refused
from pipec.frontends.onnx.values import Value, array_of
from pipec.frontends.onnx.weights import Weights
from pipec.graph.arrays import Array

Result: TypeAlias = "Value | tuple[Value, ...]"
Lowering: TypeAlias = Callable[..., Result]


class Runner(Protocol):
    """What a context asks of the interpreter."""

    weights: Weights
    pinned: frozenset[str]
    sized: frozenset[str]

    def lift(self, array: Array) -> Tensor | None:
        """What computes a known value that depends on open sizes; see `Interpreter.lift`."""

    def subgraph(
        self, ctx: "Context", graph: onnx.GraphProto, inputs: list[Value], tag: str
    ) -> list[Value]:
        """Run a subgraph of the node in its scope; see `Interpreter.subgraph`."""


@dataclass
class Context:
    """One node while it is run.

    Attributes:
        node: The ONNX node.
        frame: The scope that it is run in.
        path: Where it is: indices of nodes, outermost first (``12`` or ``12/3``).
        runner: The interpreter.
    """

    node: NodeProto
    frame: Frame
    path: str
    runner: Runner
    _made: int = field(default=0, init=False)

    @property
    def version(self) -> int:
        """Opset version that the file declares for the node's domain."""
        return self.frame.version(self.node.domain)

    def wants(self, k: int) -> bool:
        """Whether output ``k`` is asked for."""
        return k < len(self.node.output) and bool(self.node.output[k])

    def has(self, name: str) -> bool:
        """Whether the attribute is written on the node."""
        return any(a.name == name for a in self.node.attribute)

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute's value (strings decoded), or ``default`` where it is not written."""
        for a in self.node.attribute:
            if a.name == name:
                return _decode(onnx.helper.get_attribute_value(a))
        return default

    def tensor(self, value: Value) -> Tensor:
        """The value as a torch tensor; a known one becomes a constant of the model.

        Raises:
            Refused: The value is absent, a sequence, or of a type that torch lacks.
        """
        if isinstance(value, Tensor):
            return value
        array = array_of(value)
        made = self.runner.lift(array)
        if made is not None:
            return made
        name = self.runner.weights.name_of(array)
        if name is None:
            self._made += 1
            name = f"{self.label}.{self._made}"
        return self.runner.weights.constant(name, array)

    @property
    def label(self) -> str:
        """A name for the node that is unique in the model: its path and first output's name."""
        first = next((o for o in self.node.output if o), self.node.op_type)
        return first if "/" not in self.path else f"{first}@{self.path}"

    def number(self, value: Value) -> float | int | bool | None:
        """A known value of one element as a Python number, else None; None if sizes decide it."""
        if isinstance(value, np.ndarray) and self.runner.lift(value) is not None:
            return None
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
            number: float | int | bool = value.reshape(()).item()
            return number
        return None


def _decode(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [v.decode("utf-8", "replace") for v in value]
    return value


@dataclass(frozen=True)
class Entry:
    """A lowering and how it takes its inputs.

    Attributes:
        function: Called with the context and one argument per input of the node.
        known: Positions of inputs that must be known; they arrive as arrays.
        raw: Positions of inputs that arrive as they are, known or traced; None: all of them.
    """

    function: Lowering
    known: frozenset[int] = frozenset()
    raw: frozenset[int] | None = frozenset()

    def __call__(self, ctx: Context, values: list[Value]) -> tuple[Value, ...]:
        """Run the lowering; outputs as a tuple.

        Raises:
            Refused: It does not apply.
        """
        result = self.function(ctx, *(self._argument(ctx, k, v) for k, v in enumerate(values)))
        return result if isinstance(result, tuple) else (result,)

    def _argument(self, ctx: Context, k: int, value: Value) -> Value:
        if value is None or self.raw is None or k in self.raw:
            return value
        return array_of(value) if k in self.known else ctx.tensor(value)


LOWERINGS: dict[tuple[str, str], Entry] = {}
"""(domain, op type) to lowering; the standard domain is the empty string."""


def lowering(
    *names: str, domain: str = "", known: tuple[int, ...] = (), raw: tuple[int, ...] | None = ()
) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of ONNX ops.

    Args:
        names: Op types.
        domain: Operator domain.
        known: Positions of inputs that must be known at compile time.
        raw: Positions of inputs to hand over as they are; None for all.
    """

    def register(function: Lowering) -> Lowering:
        entry = Entry(function, frozenset(known), None if raw is None else frozenset(raw))
        for name in names:
            LOWERINGS[domain, name] = entry
        return function

    return register


def scalar(value: Array | None, default: Any = None) -> Any:
    """The one element of a known tensor as a Python number; ``default`` where it is absent.

    Raises:
        Refused: It has not exactly one element.
    """
    if value is None:
        return default
    if value.size != 1:
        raise Refused(f"one number wanted, a tensor of shape {list(value.shape)} given")
    return value.reshape(()).item()
