"""The tensors that the graph reads beside its inputs, by name, and what kind each one is."""

from collections.abc import Callable, Iterable

from torch import Tensor

from pipec.frontends.onnx.values import Value, constant_tensor, leaves
from pipec.graph.arrays import Array
from pipec.graph.ir import InputKind
from pipec.graph.torch_private import without_modes

Live = Callable[[str, Tensor], Tensor]
"""What stands for a weight while nodes run, given its name and data: a fake copy, say."""


class Weights:
    """Parameters, buffers and constants of a model under their ONNX names.

    While the model is evaluated the set grows: initialisers come first, then whatever a node needs
    as a tensor.

    Attributes:
        kinds: Name to kind.
    """

    def __init__(self, live: Live) -> None:
        self.kinds: dict[str, InputKind] = {}
        self._read: dict[str, Callable[[], Tensor]] = {}
        self._live: dict[str, Tensor] = {}
        self._make_live = live
        self._names: dict[int, str] = {}
        self._alive: list[Value] = []

    def add(
        self, name: str, tensor: Tensor, kind: InputKind, read: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """Register a weight and return what stands for it now."""
        self.kinds[name], self._read[name] = kind, read or (lambda: tensor)
        self._live[name] = self._make_live(name, tensor)
        return self._live[name]

    def real(self) -> dict[str, Tensor]:
        """Name to the data, of all; what a file holds is read from it."""
        return {name: read() for name, read in self._read.items()}

    def constant(self, name: str, array: Array, kind: InputKind = InputKind.CONSTANT) -> Tensor:
        """The tensor of a known value; registered under ``name`` when it is first wanted.

        Raises:
            Refused: Torch has no such element type.
        """
        if name in self._live:
            return self._live[name]
        with without_modes():
            real = constant_tensor(array)
        return self.add(name, real, kind)

    def call(self, name: str, value: Value) -> None:
        """Remember that the arrays in ``value`` are called ``name``; the first name stays."""
        parts: Iterable[Tensor | Array] = leaves(value)
        for k, part in enumerate(parts):
            if not isinstance(part, Tensor) and id(part) not in self._names:
                self._names[id(part)] = f"{name}.{k}" if isinstance(value, list) else name
                self._alive.append(part)

    def name_of(self, array: Array) -> str | None:
        """The name under which the interpreter knows ``array``."""
        return self._names.get(id(array))
