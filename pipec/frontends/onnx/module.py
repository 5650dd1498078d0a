"""An ONNX model as a torch module: what `torch.export` traces."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor, fx, nn

from pipec.frontends.onnx.evaluation import Evaluation
from pipec.frontends.onnx.interpreter import ANNOTATION, Interpreter
from pipec.frontends.onnx.values import Value, leaves
from pipec.graph.ir import InputKind

_ODD = re.compile(r"\W+")


class OnnxModule(nn.Module):
    """Runs an evaluated model node by node; the evaluation's decisions are followed.

    Weights are attributes whose names are their ONNX names made into identifiers; `names` leads
    back. Known outputs are constants.

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
        attributes = {name: attribute for attribute, name in self.names.items()}
        return tuple(
            value if isinstance(value, Tensor) else getattr(self, attributes[name])
            for name, value in self.run(tensors).items()
        )

    def run(self, tensors: Sequence[Tensor]) -> dict[str, Value]:
        """Graph outputs by name as the interpreter has them: traced, known, lists, None."""
        (evaluation,) = self._box
        weights = evaluation.weights.fixed(
            {name: getattr(self, attribute) for attribute, name in self.names.items()}
        )
        interpreter = Interpreter(weights, evaluation.memory, sized=evaluation.sized)
        frame = evaluation.model.frame()
        for name, array in evaluation.known.items():
            interpreter.bind(frame, name, array)
        for name in evaluation.model.initializers:
            if name in weights.kinds and name not in frame.env:
                frame.env[name] = weights.get(name)
        given = iter(tensors)
        for name, value in evaluation.inputs.items():
            interpreter.bind(frame, name, _filled(value, given))
        for k, node in enumerate(evaluation.model.proto.graph.node):
            if all(o in evaluation.known for o in node.output if o):
                interpreter.note(node, frame, str(k))
                continue
            with fx.traceback.annotate({ANNOTATION: k}):
                interpreter.step(frame, node, str(k))
        outputs = {o.name: frame.env[o.name] for o in evaluation.model.proto.graph.output}
        for name, value in outputs.items():
            if isinstance(value, np.ndarray) and (made := interpreter.lifted(value)) is not None:
                outputs[name] = made
        return outputs


def _filled(value: Value, given: Iterator[Tensor]) -> Value:
    if isinstance(value, list):
        return [_filled(v, given) for v in value]
    return next(given) if isinstance(value, Tensor) else value


def index_of(node: fx.Node) -> int | None:
    """Index of the ONNX node that an exported node belongs to, if it was noted."""
    noted = node.meta.get("custom")
    index = noted.get(ANNOTATION) if isinstance(noted, dict) else None
    return index if isinstance(index, int) else None
