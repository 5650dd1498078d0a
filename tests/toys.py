"""Small graphs built by hand, for tests that need no front end."""

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pipec.graph.ir import Graph, GraphInput, GraphOutput, InputKind, Origin, OutputKind

aten = torch.ops.aten


class Builder:
    """Writes a graph node by node; every node is evaluated on fake tensors."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fx = fx.Graph()
        self.inputs: list[GraphInput] = []
        self.weights: dict[str, torch.Tensor] = {}

    def input(self, name: str, *shape: int, kind: InputKind = InputKind.INPUT) -> fx.Node:
        node = self.fx.placeholder(name.replace(".", "_"))
        with self.mode:
            node.meta["val"] = torch.empty(shape)
        self.inputs.append(GraphInput(node.name, kind, name))
        if kind.is_weight:
            generator = torch.Generator().manual_seed(len(self.inputs))
            self.weights[name] = torch.randn(shape, generator=generator) / 4
        return node

    def parameter(self, name: str, *shape: int) -> fx.Node:
        return self.input(name, *shape, kind=InputKind.PARAMETER)

    def call(self, target: object, *args: object, name: str | None = None) -> fx.Node:
        node = self.fx.create_node("call_function", target, args, name=name)  # type: ignore[arg-type]
        with self.mode:
            values = fx.map_arg(list(args), lambda n: n.meta["val"])  # type: ignore[type-var]
            node.meta["val"] = target(*values)  # type: ignore[operator]
        node.meta["origin"] = Origin(node.name, str(target))
        return node

    def graph(self, *outputs: fx.Node) -> Graph:
        self.fx.output(outputs)
        return Graph(
            module=fx.GraphModule({}, self.fx, "Toy"),
            inputs=tuple(self.inputs),
            outputs=tuple(
                GraphOutput(o.name, OutputKind.OUTPUT, f"y{k}") for k, o in enumerate(outputs)
            ),
            weights=self.weights,
        )


def mlp(layers: int = 4, width: int = 8, batch: int = 2) -> Graph:
    """``layers`` times (linear, relu), with a skip from the first layer to the last."""
    b = Builder()
    weights = [b.parameter(f"layer{k}.weight", width, width) for k in range(layers)]
    x = b.input("x", batch, width)
    first = None
    for k, w in enumerate(weights):
        x = b.call(
            aten.relu.default, b.call(aten.linear.default, x, w, name=f"linear{k}"), name=f"relu{k}"
        )
        first = first or x
    assert first is not None
    return b.graph(b.call(aten.add.Tensor, x, first, name="skip"))


def run(graph: Graph, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """The outputs of a graph by name, from user inputs and values by name."""
    args = [graph.weights[i.name] if i.kind.is_weight else inputs[i.name] for i in graph.inputs]
    results = fx.Interpreter(graph.module).run(*args)
    return {o.name: r for o, r in zip(graph.outputs, results, strict=True)}


class FirstToAll(nn.Module):
    """What the first layer gives, every other one reads, as what an encoder gives its decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(13))

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.layers[0](x)
        x = first
        for layer in self.layers[1:]:
            x = torch.tanh(layer(x)) + first
        return x
