"""An evaluated ONNX model as a torch module: what `torch.export` traces together with a loss."""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx, nn

from pipec.frontends.onnx.evaluation import Evaluation
from pipec.frontends.onnx.recorder import ANNOTATION
from pipec.frontends.onnx.values import leaves
from pipec.graph.ir import InputKind

_ODD = re.compile(r"\W+")


class OnnxModule(nn.Module):
    """Runs what was recorded of a model, op by op.

    Weights are attributes whose names are their ONNX names made into identifiers; `names` leads
    back.

    Attributes:
        names: Attribute to ONNX name, for every weight.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self._box = (evaluation,)  # a tuple: torch.export copies dictionaries and lists
        self.names: dict[str, str] = {}
        weights = evaluation.weights
        for name, tensor in weights.real().items():
            self._hold(name, tensor, weights.kinds[name])
        self.eval()

    def _hold(self, name: str, tensor: Tensor, kind: InputKind) -> None:
        attribute = self._attribute(name)
        self.names[attribute] = name
        if kind is InputKind.PARAMETER:
            self.register_parameter(attribute, nn.Parameter(tensor))
        elif kind is InputKind.BUFFER:
            self.register_buffer(attribute, tensor)
        else:
            setattr(self, attribute, tensor)

    def _attribute(self, name: str) -> str:
        plain = _ODD.sub("_", name).strip("_") or "weight"
        plain = f"w_{plain}" if plain[0].isdigit() else plain
        unique, k = plain, 1
        while unique in self.names or hasattr(self, unique):
            unique, k = f"{plain}_{k}", k + 1
        return unique

    @property
    def examples(self) -> list[Tensor]:
        """The example inputs, flat."""
        return [t for v in self._box[0].inputs.values() for t in leaves(v) if isinstance(t, Tensor)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The graph outputs, for the traced graph inputs, flat; a known output is a constant."""
        (evaluation,) = self._box
        values = self.values(tensors)
        node_of = evaluation.recorder.node_of
        return tuple(values[node_of(t)] for t in evaluation.yielded.values())

    def values(self, tensors: Sequence[Tensor]) -> dict[fx.Node, Any]:
        """What every recorded node yields, for the traced graph inputs, flat."""
        (evaluation,) = self._box
        attributes = {name: attribute for attribute, name in self.names.items()}
        given = iter(tensors)
        values: dict[fx.Node, Any] = {}
        for node in evaluation.recorder.graph.nodes:
            if node.op == "placeholder":
                name = evaluation.recorder.names[node]
                attribute = attributes.get(name) if name in evaluation.weights.kinds else None
                values[node] = next(given) if attribute is None else getattr(self, attribute)
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with fx.traceback.annotate({ANNOTATION: index_of(node)}):
                values[node] = node.target(*args, **kwargs)
        return values


def index_of(node: fx.Node) -> int | None:
    """Index of the ONNX node that an exported node belongs to, if it was noted."""
    noted = node.meta.get("custom")
    index = noted.get(ANNOTATION) if isinstance(noted, dict) else None
    return index if isinstance(index, int) else None
