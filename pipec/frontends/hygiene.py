"""From a functional `ExportedProgram` to a `Graph`: one copy that leaves all dirt behind.

Left out: metadata assertions, nodes that nothing reads, and nodes that change nothing (a reshape
to the same shape, a full slice). ``view`` becomes ``reshape`` (see `COMPOSITES`): a view is only
legal for the strides that tracing saw. Of the metadata, value and origin stay; source paths of
this machine do not.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export import graph_signature as export

from pipec.autodiff.recompute import is_random
from pipec.errors import FrontendError
from pipec.escape import python_identifier
from pipec.frontends.composites import COMPOSITES, Args
from pipec.frontends.origins import OriginOf, module_origin
from pipec.graph.ir import (
    Graph,
    GraphInput,
    GraphOutput,
    InputKind,
    Origin,
    OutputKind,
    Source,
    tensors,
)
from pipec.graph.rules import OWN_NAMESPACES
from pipec.graph.torch_private import OpOverload, graph_module, namespace_of

_aten = torch.ops.aten
_DROPPED = frozenset({_aten._assert_tensor_metadata.default})
_IDENTITY_IF_SAME = frozenset(
    {
        _aten.alias.default,
        _aten.clone.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.reshape.default,
        _aten.view.default,
        _aten.slice.Tensor,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.transpose.int,
        _aten._to_copy.default,
        _aten.lift_fresh_copy.default,
    }
)
"""Ops that are the identity when shape, dtype, stride and device of the result are the input's."""

INPUT_KINDS = {
    export.InputKind.PARAMETER: InputKind.PARAMETER,
    export.InputKind.BUFFER: InputKind.BUFFER,
    export.InputKind.CONSTANT_TENSOR: InputKind.CONSTANT,
    export.InputKind.USER_INPUT: InputKind.INPUT,
}
"""Kinds of inputs as `torch.export` has them, in order, to those of a graph."""
_PREFIX = {InputKind.PARAMETER: "p_", InputKind.BUFFER: "b_", InputKind.STATE: "b_",
           InputKind.CONSTANT: "c_"}  # fmt: skip


@dataclass(frozen=True)
class Naming:
    """What the nodes and weights of an exported program are called in the graph.

    Attributes:
        inputs: Name of each user input tensor, in order.
        outputs: Name of each user output tensor, in order.
        prefix: Leading part of weight names and module paths to leave out (``model.``).
        tied: Canonical weight name to its other names, without the prefix.
        loss: Name of the output that is the loss, if one is.
        origin: Overrides where a node came from.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    prefix: str = ""
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loss: str | None = None
    origin: OriginOf | None = None


@dataclass(frozen=True)
class Traced:
    """A functional graph as it was traced: what `torch.export` gives, or a recorder.

    Attributes:
        nodes: Placeholders, calls, and one output.
        signature: What placeholders and outputs are.
        weights: Data by the targets in the signature.
    """

    nodes: Sequence[fx.Node]
    signature: export.ExportGraphSignature
    weights: Mapping[str, Any]

    @classmethod
    def of(cls, program: ExportedProgram) -> "Traced":
        """That of a decomposed program, the result of ``run_decompositions({})``."""
        weights = {**program.constants, **program.state_dict}
        return cls(list(program.graph.nodes), program.graph_signature, weights)


def clean_graph(program: Traced, naming: Naming, source: Source, *, differentiable: bool) -> Graph:
    """The graph of a decomposed program; ``detach`` stays if it is to be differentiable.

    Raises:
        FrontendError: The program has something in it that a graph cannot hold.
    """
    return _Copy(program, naming, differentiable=differentiable).graph(source)


class _Copy:
    """The state of one copy: old node to new node, and what was found on the way."""

    def __init__(self, program: Traced, naming: Naming, *, differentiable: bool) -> None:
        self.program, self.naming = program, naming
        self.new, self.env = fx.Graph(), dict[fx.Node, fx.Node]()
        self.identity = _IDENTITY_IF_SAME
        if not differentiable:
            self.identity = _IDENTITY_IF_SAME | {_aten.detach.default}
        self.canonical = {a: name for name, other in naming.tied.items() for a in other}
        self.namespaces: set[str] = set()
        self.weights: dict[str, Tensor] = {}
        self.taken = self._names_of_others()

    def _names_of_others(self) -> set[str]:
        """Names that a node may not have because an input or another node's output has them."""
        names = iter(self.naming.outputs)
        signature = self.program.signature
        taken = set(self.naming.inputs)
        for spec in signature.output_specs:
            if spec.kind is export.OutputKind.BUFFER_MUTATION:
                taken.add(self._canonical(str(spec.target)))
            elif spec.kind is export.OutputKind.USER_OUTPUT and spec.arg is not None:
                name = next(names, "")
                if getattr(spec.arg, "name", "") != name:
                    taken.add(name)
        return taken

    def graph(self, source: Source) -> Graph:
        nodes = list(self.program.nodes)
        inputs = self._inputs([n for n in nodes if n.op == "placeholder"])
        needed = _find_needed(nodes)
        for n in nodes:
            if n.op not in ("placeholder", "output") and n in needed:
                self._call(n)
        outputs = self._outputs(nodes[-1])
        self.new.output(tuple(n for n, _ in outputs))
        return Graph(
            module=graph_module(self.new, "Model"),
            inputs=tuple(inputs),
            outputs=tuple(o for _, o in outputs),
            weights=self.weights,
            tied=self.naming.tied,
            source=source,
            namespaces=frozenset(self.namespaces),
        )

    def _inputs(self, placeholders: list[fx.Node]) -> list[GraphInput]:
        user, holders = iter(self.naming.inputs), dict[str, fx.Node]()
        written = set(self.program.signature.buffers_to_mutate.values())
        found: list[GraphInput] = []
        for n, spec in zip(placeholders, self.program.signature.input_specs, strict=True):
            if isinstance(spec.arg, export.ConstantArgument) and not n.users:
                continue
            if spec.kind not in INPUT_KINDS or not isinstance(n.meta.get("val"), Tensor):
                raise FrontendError("an input is not a tensor", where=n.name, got=spec.kind.name)
            kind = INPUT_KINDS[spec.kind]
            if spec.persistent is False:  # in no state dict
                kind = InputKind.STATE if spec.target in written else InputKind.CONSTANT
            name = next(user) if kind is InputKind.INPUT else self._weight(str(spec.target))
            if kind.is_weight and name in holders:
                self.env[n] = holders[name]  # a tied weight has one placeholder
                continue
            placeholder = self.new.placeholder(python_identifier(_PREFIX.get(kind, "") + name))
            placeholder.target = placeholder.name
            placeholder.meta["val"] = n.meta["val"]
            self.env[n] = holders[name] = placeholder
            found.append(GraphInput(placeholder.name, kind, name))
        return found

    def _weight(self, target: str) -> str:
        """Record the weight called ``target`` in the program; its name in the graph."""
        name = self._canonical(target)
        self.weights[name] = self.program.weights[target]
        return name

    def _canonical(self, target: str) -> str:
        bare = target.removeprefix(self.naming.prefix)
        return self.canonical.get(bare, bare)

    def _call(self, n: fx.Node) -> None:
        if n.op != "call_function" or not (
            isinstance(n.target, OpOverload) or n.target is operator.getitem
        ):
            raise FrontendError(
                "the model uses control flow or Python code that a flat graph cannot hold",
                where=f"{n.name}: {module_origin(n, self.naming.prefix)}",
                got=n.target,
            )
        _refuse_unsayable(n, module_origin(n, self.naming.prefix))
        twice = n.target is _aten.detach.default and n.all_input_nodes[0].target is n.target
        if twice or (n.target in self.identity and _same(n, n.args[0])):
            self.env[n] = self.env[n.args[0]]  # type: ignore[index]
            return
        known = self.naming.origin(n) if self.naming.origin is not None else None
        origin = known or module_origin(n, self.naming.prefix)
        args = fx.map_arg(n.args, self.env.__getitem__)
        kwargs = fx.map_arg(n.kwargs, self.env.__getitem__)

        def emit(target: Any, args: Args, kwargs: Mapping[str, Any], value: object) -> fx.Node:
            """Add a node under the name and origin of the one that is copied."""
            name = f"{n.name}_inner" if n.name in self.taken else n.name
            new = self.new.create_node("call_function", target, args, dict(kwargs), name=name)
            new.meta = {"val": value, "origin": origin}
            return new

        if n.target in COMPOSITES:
            self.env[n] = COMPOSITES[n.target](n, args, emit)
        else:
            self.env[n] = emit(n.target, args, kwargs, n.meta.get("val"))
        if isinstance(n.target, OpOverload) and namespace_of(n.target) not in OWN_NAMESPACES:
            self.namespaces.add(namespace_of(n.target))

    def _outputs(self, output: fx.Node) -> list[tuple[fx.Node, GraphOutput]]:
        names, found = iter(self.naming.outputs), list[tuple[fx.Node, GraphOutput]]()
        specs = self.program.signature.output_specs
        for value, spec in zip(output.args[0], specs, strict=True):  # type: ignore[arg-type]
            if not isinstance(value, fx.Node):
                continue
            new = self.env[value]
            if spec.kind is export.OutputKind.BUFFER_MUTATION:
                kind = OutputKind.BUFFER_UPDATE
                name = self._canonical(str(spec.target))
            elif spec.kind is export.OutputKind.USER_OUTPUT:
                name = next(names)
                kind = OutputKind.LOSS if name == self.naming.loss else OutputKind.OUTPUT
            elif spec.kind is export.OutputKind.USER_INPUT_MUTATION:
                continue  # the caller's tensor is not written back: stages take copies
            else:
                raise FrontendError(
                    "the model changes a parameter while it runs",
                    where=spec.target,
                    got=spec.kind.name,
                    hint="make it a buffer",
                )
            new = self._as_call(new)
            found.append((new, GraphOutput(new.name, kind, name)))
        return found

    def _as_call(self, new: fx.Node) -> fx.Node:
        """What leaves the graph as a call: an input or a weight itself would belong to no stage."""
        if new.op != "placeholder":
            return new
        name, k = f"{new.name}_out", 0
        while name in self.taken:
            name, k = f"{new.name}_out_{k}", k + 1
        copy = self.new.create_node("call_function", _aten.clone.default, (new,), name=name)
        copy.meta = {"val": new.meta["val"].clone(), "origin": Origin("", "clone")}
        return copy


def _refuse_unsayable(n: fx.Node, origin: Origin) -> None:
    """Refuse what a flat graph of static shapes would say wrongly or not at all."""
    if any(not isinstance(size, int) for t in tensors(n) for size in t.shape):
        raise FrontendError(
            "the shape of a value depends on data", where=f"{n.name}: {origin}", got=n.target
        )
    norm = n.target is _aten.instance_norm.default
    if norm and n.args[3] is not None and n.args[5]:
        raise FrontendError(
            "instance normalization in training would not update its running statistics",
            where=f"{n.name}: {origin}",
            hint="track_running_stats=False",
        )


def _find_needed(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What the output reads, directly or not; random draws stay, to keep the random stream."""
    needed = {nodes[-1]}
    for n in reversed(nodes):
        if n.target in _DROPPED:
            continue
        if n in needed or is_random(n):
            needed.add(n)
            needed.update(n.all_input_nodes)
    return needed


def _same(n: fx.Node, source: object) -> bool:
    """Whether ``n`` has the type and layout of ``source``."""
    if not isinstance(source, fx.Node):
        return False
    a, b = n.meta.get("val"), source.meta.get("val")
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and (a.shape, a.dtype, a.device, a.stride()) == (b.shape, b.dtype, b.device, b.stride())
    )
