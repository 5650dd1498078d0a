"""Tracing: any module and example inputs in, a `Graph` out.

```text
 module, inputs ─► torch.export ─► no-grad explicit ─► decompose({}) ─► one clean copy ─► rules
                   (strict=False)                      (functional)
```

Parameters on ``meta`` are traced as fake CPU tensors, so that no node of the graph says
``device=meta`` and a model of any size is traced without its weights.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export import graph_signature as export

from pipec.errors import FrontendError
from pipec.frontends.base import AUTO, quiet, user_code
from pipec.frontends.composites import is_functional
from pipec.frontends.eager import as_nodes, find_parts
from pipec.frontends.hygiene import Naming, Traced, clean_graph
from pipec.frontends.leaves import Call, name_tensors
from pipec.frontends.lost import Watch, device_types, keep_state, no_lost_casts, no_lost_gradients
from pipec.frontends.origins import OriginOf
from pipec.frontends.regions import explicit_casts, explicit_no_grad
from pipec.frontends.rows import draw, find_growth, is_small
from pipec.graph.eager import swap_tensors
from pipec.graph.ir import GROWTH, Graph, Source, tensors
from pipec.graph.rules import verify
from pipec.graph.torch_private import FakeTensorMode, quick_tracing, tree_leaves

_ALONE = "it must run alone, model(*inputs), and its values must not decide what it computes"
_EAGER = "parts of which that is not true can run as they are: --eager, eager=True"
MODEL = "model."
"""Where a `Flat` has the model's own weights."""


@dataclass(frozen=True)
class Loss:
    """A loss function and its target, part of a training graph.

    Attributes:
        fn: Called with the model's outputs as they are, then the target; gives one scalar.
        target: Example target: a tensor (input ``target``), a tuple of tensors (``target0``, ...,
            passed in order), a mapping (inputs by its keys, passed by keyword), or None for a
            loss that needs none (a model that computes its own: ``lambda out: out.loss``).
        alone: Whether the graph ends in the loss alone, without the model's outputs.
    """

    fn: Callable[..., object]
    target: object = None
    alone: bool = True

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The target's tensors by name."""
        if isinstance(self.target, list | tuple):
            return {f"target{k}": t for k, t in enumerate(self.target)}
        if isinstance(self.target, Mapping):
            return dict(self.target)
        return {"target": self.target} if isinstance(self.target, Tensor) else {}

    def with_inputs(self, targets: Mapping[str, Tensor]) -> "Loss":
        """The same loss against other example targets, by the names of `inputs`."""
        if isinstance(self.target, list | tuple):
            return replace(self, target=tuple(targets.values()))
        if isinstance(self.target, Mapping):
            return replace(self, target={**self.target, **targets})
        return replace(self, target=targets["target"]) if targets else self

    def __call__(self, outputs: object, targets: Sequence[Tensor]) -> Tensor:
        """The loss of ``outputs`` against the target's tensors, in the order of `inputs`.

        Raises:
            FrontendError: It is not one floating point number.
        """
        if isinstance(self.target, Mapping):
            loss = self.fn(outputs, **dict(zip(self.inputs, targets, strict=True)))
        else:
            loss = self.fn(outputs, *targets)
        return check_loss(loss, FrontendError, "reduce it: loss.mean(), or reduction='mean'")


def check_loss(loss: object, failure: type[FrontendError], hint: str) -> Tensor:
    """A loss that can be differentiated; ``failure`` with this hint where it is none."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise failure(
            "the loss is not one floating point number",
            got=f"{loss.dtype}{list(loss.shape)}" if isinstance(loss, Tensor) else type(loss),
            hint=hint,
        )
    return loss


@dataclass
class _Names:
    """A box that `torch.export` leaves alone: it resets plain containers on modules."""

    outputs: list[str]
    result: object = None


class Flat(nn.Module):
    """A model as a function of flat tensors to flat tensors, its loss included.

    Attributes:
        inputs: Name to example tensor: the model's arguments, then the loss's target.
        watch: What a call enters: it looks at the model's code alone, not at torch's own.
    """

    def __init__(
        self, model: nn.Module, call: Call, loss: Loss | None = None, autocast: str = ""
    ) -> None:
        super().__init__()
        self._autocast = autocast
        self.watch: type[AbstractContextManager[object]] = nullcontext
        self.model = model
        self.loss = loss.fn if loss and isinstance(loss.fn, nn.Module) else None
        self._call, self._loss = call, loss
        tensors = {**call.tensors, **(loss.inputs if loss else {})}
        first = {id(t): k for k, t in reversed(tensors.items())}
        # tracing takes one object that is passed twice for one input
        self.inputs = {k: t if first[id(t)] == k else t.clone() for k, t in tensors.items()}
        self._names = _Names([])

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs of the last call."""
        return self._names.outputs

    def find_growth(self, graph: Graph) -> list[float]:
        """What the loss of one, two and three rows is where it adds up, after it was traced.

        A small model is run for it; beside this the loss is called with random numbers in place of
        the model's outputs.
        """
        if self._loss is None:
            return []
        outputs, self._names.result, self.watch = self._names.result, None, nullcontext
        targets = [*self._loss.inputs.values()]

        def apart(called: Any) -> Any:
            """It may have state."""
            return copy.deepcopy(called, {id(w): w for w in self.parameters()})

        loss, rows, found = self._loss, graph.rows, list[float]()
        values = [t for n in graph.calls for t in tensors(n)]
        if is_small(self.state_dict().values()) and is_small(values, rows):
            # as in training, dropout would drop other numbers of each row
            whole = [*self.inputs.values()]
            found = find_growth(lambda *t: apart(self).eval()(*t)[0], whole, rows)
        if not found and is_small(tree_leaves(outputs), rows):
            found = find_growth(lambda y, *t: apart(loss)(y, t), [draw(outputs), *targets], rows)
        return found

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Outputs in the order of `outputs`; the loss first where there is one."""
        count = len(self._call.tensors)
        args, kwargs = self._call.arguments(tensors[:count])
        kind = min(device_types([*self.model.parameters(), *tensors]), default="cpu")
        dtype = getattr(torch, self._autocast or "bfloat16")
        casts = torch.autocast(kind, dtype) if self._autocast else nullcontext()
        with self.watch(), keep_state(self.model), casts:
            result = self._names.result = self.model(*args, **kwargs)
            if self._loss is not None:
                loss = {"loss": self._loss(result, tensors[count:])}
                others = {} if self._loss.alone else name_tensors(result)
                result = loss | {n: t for n, t in others.items() if n != "loss"}
        named = name_tensors(result)
        self._names.outputs = list(named)
        return tuple(named.values())


def trace(
    module: nn.Module,
    args: Sequence[object],
    *,
    kwargs: Mapping[str, object] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    loss: Loss | None = None,
    source: Source,
    origin: OriginOf | None = None,
    differentiable: bool = True,
    autocast: str = "",
    eager: Sequence[str] = (),
) -> Graph:
    """Trace ``module`` as it stands (its training mode included) and verify the graph.

    Args:
        module: The model; parameters may be real, fake, or on ``meta``.
        args: Example arguments: tensors, and nested containers of them. Anything that is not a
            tensor is a constant of the graph.
        kwargs: Example keyword arguments.
        input_names: Names for the tensors among the arguments; by default the parameters of
            ``module.forward``.
        output_names: Names for the output tensors; by default see `name_tensors`.
        loss: Ends the graph in this loss (and nothing else, if it is alone).
        source: What the module was made of.
        origin: Gives a node's origin from what tracing noted on it; None leaves it to the module
            path.
        differentiable: Keep what only matters to gradients (``detach``).
        autocast: A dtype, to run model and loss under `torch.autocast` of it.
        eager: Parts that are run as they are, each call one node (`pipec.frontends.eager`); `AUTO`
            where they were looked for and none was found.

    Raises:
        FrontendError: The model raises, or does something that cannot be traced.
        PlanError: Autocast is on around the call.
        GraphError: The result breaks a rule of the IR (a defect of pipec).
    """
    flat = Flat(module, Call(module, args, kwargs or {}), loss, autocast)
    parts = find_parts(flat, [n for n in eager if n != AUTO], MODEL)
    nodes = as_nodes(flat, [*flat.inputs.values()], parts, source, tracked=differentiable)
    whole = no_lost_gradients(flat, parts.values()) if differentiable else nullcontext()
    casts = no_lost_casts([*flat.state_dict().values(), *flat.inputs.values()])
    hint = _ALONE if eager else f"{_ALONE}; {_EAGER}"
    meta, weights = fx.traceback.preserve_node_meta(), fake_weights(flat, flat.inputs)
    with quick_tracing(), nodes, meta, weights as tensors:
        flat.watch = Watch if differentiable else nullcontext
        with user_code("the model cannot be traced", hint), whole, casts, quiet():
            program = torch.export.export(flat, tensors, strict=False)
        decomposed = decompose(program, differentiable=differentiable, hint=hint)
    names = list(input_names or flat.inputs), list(output_names or flat.outputs)
    ends = "loss" if loss else None
    naming = Naming(*names, prefix=MODEL, tied=find_tied(module), loss=ends, origin=origin)
    graph = clean_graph(Traced.of(decomposed), naming, source, differentiable=differentiable)
    verify(graph, "traced model")
    growth = {GROWTH: g} if (g := flat.find_growth(graph)) else {}
    return replace(graph, source=replace(source, options={**source.options, **growth}))


def decompose(
    program: ExportedProgram, *, differentiable: bool, hint: str = _ALONE
) -> ExportedProgram:
    """Make a program flat and functional; no op is taken apart that a graph may hold.

    Raises:
        FrontendError: torch fails to, or a hidden update would be lost (see `explicit_no_grad`).
    """
    _refuse_control_flow(program, hint)
    specs = program.graph_signature.input_specs
    trained = [s.arg.name for s in specs if differentiable and s.kind is export.InputKind.PARAMETER]
    explicit_no_grad(program.graph_module, trained)
    with user_code("the traced model cannot be cast by autocast", hint), quiet():
        explicit_casts(program.graph_module)
    outputs = program.graph.output_node().args[0]
    for node, spec in zip(outputs, program.graph_signature.output_specs, strict=True):
        if isinstance(node, fx.Node) and hasattr(spec.arg, "name"):
            spec.arg.name = node.name
    if is_functional(program):
        return program
    state = program.state_dict
    for node, spec in zip(program.graph.nodes, specs, strict=False):
        if spec.kind is export.InputKind.BUFFER and not node.users and spec.target in state:
            state[spec.target] = state[spec.target].clone()  # another name of a buffer that changes
    with user_code("the traced model cannot be made functional"), quiet(), quick_tracing():
        result: ExportedProgram = program.run_decompositions({})
    return result


_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl", "associative_scan"})


def _refuse_control_flow(program: ExportedProgram, hint: str) -> None:
    """Say which branch or loop of run time the model has, or which number of run time."""
    for n in program.graph.nodes:
        name = getattr(n.target, "__name__", "")
        if name == "item.default" and n.users:
            what = "a number that is read out of a tensor cannot be part of a graph"
            raise FrontendError(what, where=n.name, got=f"{n.args[0]}.item()", hint=hint)
        if n.op == "call_function" and name in _CONTROL_FLOW and not hasattr(n.target, "_schema"):
            raise FrontendError(
                "a branch or loop on values of run time cannot be cut into stages",
                where=n.name,
                got=f"torch.{name}, a subgraph that runs once, never or many times",
                want="a graph in which every node runs once",
                hint="select with torch.where, unroll the loop, or compile the model as ONNX, "
                "where an If or Loop is one opaque node (inference)",
            )


def find_tied(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """Canonical (first) name to the other names of every parameter or buffer that has several.

    Example:
        >>> a = nn.Linear(2, 2); b = nn.Linear(2, 2); b.weight = a.weight
        >>> find_tied(nn.Sequential(a, b))
        {'0.weight': ('1.weight',)}
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in module.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        names[id(buffer)].append(name)
    return {first: tuple(other) for first, *other in names.values() if other}


@contextmanager
def fake_weights(module: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Let ``meta`` parameters and buffers be fake CPU tensors inside the block; yields the inputs.

    Aliases stay aliases. Nothing happens when no tensor is on ``meta``.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    seen: dict[int, Tensor] = {}

    def fake(t: Tensor) -> Tensor:
        if t.device.type != "meta":
            return t
        if id(t) not in seen:
            with mode:
                like = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
            if isinstance(t, nn.Parameter):
                seen[id(t)] = nn.Parameter(like, t.requires_grad)
            else:
                seen[id(t)] = like
        return seen[id(t)]

    with swap_tensors(module, fake):
        yield tuple(fake(t) for t in inputs.values())
