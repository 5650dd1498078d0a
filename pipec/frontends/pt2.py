"""The ``.pt2`` front end: what `torch.export.save` wrote, its open shapes at one size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export import graph_signature as export

from pipec.errors import FrontendError, NoLossError, find_near
from pipec.frontends.base import (
    Frontend,
    Loaded,
    LoadOptions,
    quiet,
    random_like,
    resize_inputs,
    user_code,
)
from pipec.frontends.hygiene import Naming, Traced, clean_graph
from pipec.frontends.leaves import name_tensors
from pipec.frontends.trace import decompose
from pipec.graph.axes import Axes, Axis
from pipec.graph.ir import Graph, Source
from pipec.graph.rules import verify
from pipec.graph.torch_private import tree_leaves, tree_unflatten
from pipec.plan.manifest import sha256_of

_trusted: set[str] = set()


def was_trusted(spec: str) -> bool:
    """Whether this process has read a file with this content that its user trusts."""
    path = Path(spec)
    return path.is_file() and sha256_of(path) in _trusted


class Pt2Frontend(Frontend):
    """Reads exported programs; only with ``trust``, since reading one may run code in it."""

    name = "pt2"
    pattern = "MODEL.pt2"
    runs_code = False  # it is refused where it is not trusted

    def accepts(self, spec: str) -> bool:
        """Whether ``spec`` ends in ``.pt2``."""
        return spec.endswith(".pt2")

    def load(self, spec: str, options: LoadOptions) -> Loaded:
        """Read the program; it was traced when it was saved.

        Raises:
            FrontendError: ``trust`` was not given, or the file cannot be read or used.
        """
        path, options = Path(spec), options.decide_training()
        if not path.is_file():
            raise FrontendError("no such model file", got=spec, hint=find_near(path))
        if not options.trust:
            raise FrontendError(
                "a .pt2 file is read only if you trust it",
                where=spec,
                got="a file format that torch.export.load may unpickle, which can run any code",
                hint="add --trust if it comes from you, or compile the model itself",
            )
        if options.loss:
            raise FrontendError(
                "an exported program is not given a loss",
                where=spec,
                got=options.loss,
                hint="export the model with its loss, or use a factory",
            )
        with quiet(), user_code(f"{spec} cannot be read", "is it whole, and of this torch?"):
            program = torch.export.load(path)
        _trusted.add(digest := sha256_of(path))
        return _load(program, options, Source("pt2", spec, digest, {}))


def _load(program: ExportedProgram, options: LoadOptions, source: Source) -> Loaded:
    inputs = example_inputs(program, options)
    axes = Axes()
    if options.open and not options.training:
        axes = find_axes(program, inputs)
    source = replace(source, options=replace(options, open=bool(axes)).record())
    outputs = list(_name_outputs(program))
    loss = None
    if options.with_loss:
        loss = _loss(program, outputs, source.location)
    original = _original(program, list(inputs))
    naming = Naming(list(inputs), outputs, tied=_find_tied(program.state_dict), loss=loss)

    def graph(inputs: Mapping[str, Tensor]) -> Graph:
        trains = bool(options.training)
        decomposed = decompose(at_one_size(program, inputs), differentiable=trains)
        return clean_graph(Traced.of(decomposed), naming, source, differentiable=trains)

    def resize(shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        return graph(example_inputs(program, replace(options, shapes=shapes)))

    planned = graph(inputs)
    verify(planned, source.location)
    return Loaded(planned, inputs, original, axes=axes, resized=resize)


def _name_outputs(program: ExportedProgram) -> dict[str, Tensor]:
    """Name to fake tensor of every output."""
    values: list[Any] = [
        n.meta["val"] if isinstance(n, torch.fx.Node) else n
        for n, s in zip(
            program.graph.output_node().args[0], program.graph_signature.output_specs, strict=True
        )
        if s.kind is export.OutputKind.USER_OUTPUT
    ]
    return name_tensors(tree_unflatten(values, program.call_spec.out_spec))


def _loss(program: ExportedProgram, outputs: list[str], where: str) -> str:
    found = _name_outputs(program)
    if len(outputs) == 1 and found[outputs[0]].numel() == 1:
        return outputs[0]
    raise NoLossError(
        "an exported program can be trained only if its one output is the loss",
        where=where,
        got=", ".join(f"{k}{list(v.shape)}" for k, v in found.items()),
        hint="export the model with its loss, or use a factory",
    )


def _find_tied(state: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Canonical name to the other names of weights that are one tensor."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, t in state.items():
        if t.numel() and t.device.type != "meta":
            key = (t.data_ptr(), t.dtype, t.shape, t.stride())
            names.setdefault(key, []).append(name)
    return {first: tuple(other) for first, *other in names.values() if other}


def _original(
    program: ExportedProgram, names: Sequence[str]
) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    """The program as saved, on inputs by name; buffers that it updates are put back."""
    module = program.module(check_guards=False)

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        missing = [name for name in names if name not in inputs]
        if missing:
            raise FrontendError("inputs are missing", got=", ".join(missing))
        args, kwargs = arguments(program, {name: inputs[name].clone() for name in names})
        buffers = {k: b.clone() for k, b in module.named_buffers()}
        with torch.no_grad(), user_code("the model raised"):
            result = torch.func.functional_call(module, buffers, args, dict(kwargs))
        return name_tensors(result)

    return run


Shape = tuple[int | torch.SymInt, ...]


def at_one_size(program: ExportedProgram, inputs: Mapping[str, Tensor]) -> ExportedProgram:
    """The program traced again for the shapes of its inputs; itself if its shapes are not open.

    Raises:
        FrontendError: torch cannot trace it at this size.
    """
    if all(isinstance(size, int) for shape in _shapes(program).values() for size in shape):
        return program
    args, kwargs = arguments(program, inputs)
    with quiet(), user_code("the program cannot be traced at one size", "name another --shape"):
        module = program.module(check_guards=False)
        found: ExportedProgram = torch.export.export(module, args, dict(kwargs), strict=False)
    return found


def arguments(
    program: ExportedProgram, inputs: Mapping[str, Tensor]
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """What the program is called with: tensors by name, and its constants."""
    flat = [
        s.arg.value if isinstance(s.arg, export.ConstantArgument) else inputs[s.arg.name]
        for s in program.graph_signature.input_specs
        if s.kind is export.InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(flat, program.call_spec.in_spec)
    return args, kwargs


def example_inputs(program: ExportedProgram, options: LoadOptions) -> dict[str, Tensor]:
    """The example inputs in the file, or random ones of the same types; sized by the options.

    An open dimension that ``options.shapes`` gives for one input has that size in all.

    Raises:
        FrontendError: The options do not fit the program.
    """
    if options.bind:
        raise FrontendError(
            "inputs and dimensions of a program cannot be bound by name",
            got=", ".join(options.bind),
            want=", ".join(f"{n}[{','.join(map(str, s))}]" for n, s in _shapes(program).items()),
            hint="give the size with --shape; an input that is a constant is one since the export",
        )
    saved = [x for x in tree_leaves(program.example_inputs) if isinstance(x, Tensor)]
    shapes = _shapes(program)
    if len(saved) == len(shapes):
        found = dict(zip(shapes, saved, strict=True))
    else:
        types = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
        found = {
            n: random_like(
                torch.zeros(1, dtype=types[n].dtype), tuple(_size(k, {}) for k in s), options.seed
            )
            for n, s in shapes.items()
        }
    sized = LoadOptions(shapes=_follow_shapes(program, shapes, options), seed=options.seed)
    return resize_inputs(found, sized)


def find_axes(program: ExportedProgram, inputs: Mapping[str, Tensor]) -> Axes:
    """The open dimensions of a program's inputs; those that are equal are one axis."""
    places: dict[str, list[tuple[str, int]]] = {}
    for name, shape in _shapes(program).items():
        for k, size in enumerate(shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(str(size.node.expr), []).append((name, k))
    sizes = {a: inputs[name].shape[k] for a, ((name, k), *_) in places.items()}
    return Axes(tuple(Axis(a, sizes[a], tuple(found)) for a, found in places.items()))


def _shapes(program: ExportedProgram) -> dict[str, Shape]:
    """Shape of every tensor among the inputs, in order."""
    types = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    specs = program.graph_signature.input_specs
    return {
        s.arg.name: tuple(types[s.arg.name].shape)
        for s in specs
        if s.kind is export.InputKind.USER_INPUT and isinstance(s.arg, export.TensorArgument)
    }


def _follow_shapes(
    program: ExportedProgram, shapes: Mapping[str, Shape], options: LoadOptions
) -> dict[str, tuple[int, ...]]:
    """Shapes of all inputs that follow from those which the options give; none if none is given."""
    sizes: dict[Any, int] = {}
    for name, given in options.shapes.items():
        declared = shapes.get(name)
        if declared is None:
            raise FrontendError("no such input", got=name, want=", ".join(shapes))
        for size, wanted in zip(declared, given, strict=False):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                sizes.setdefault(size.node.expr, wanted)
    found = {n: tuple(_size(s, sizes) for s in shape) for n, shape in shapes.items()}
    what, allowed = "--shape does not fit the program's input", program.range_constraints
    for name, given in options.shapes.items():
        got = ",".join(map(str, given))
        if len(given) != len(found[name]):
            want = f"{len(found[name])} sizes"
            raise FrontendError(what, where=name, got=got, want=want)
        for axis, (size, n) in enumerate(zip(shapes[name], given, strict=True)):
            open_size = None if isinstance(size, int) else allowed.get(size.node.expr)
            want = str(found[name][axis])
            if open_size is not None and n not in open_size:
                least, most = open_size.lower, open_size.upper
                want = f"{least} to {most}" if most.is_Integer else f"at least {least}"
            elif n == found[name][axis]:
                continue
            raise FrontendError(what, where=f"{name}, axis {axis}", got=f"{n} of {got}", want=want)
    return found if sizes else {}


def _size(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> int:
    """A dimension where some symbols have a size; the others are as they were."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.free_symbols <= sizes.keys():
        return int(expression.subs(sizes))
    return int(size.node.hint)
