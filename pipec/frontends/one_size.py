"""An exported program whose shapes are open, at the one size that it is planned for."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export import graph_signature as export

from pipec.errors import FrontendError
from pipec.frontends.base import LoadOptions, quiet, user_code
from pipec.frontends.examples import random_like, resize_inputs
from pipec.graph.axes import Axes, Axis
from pipec.graph.torch_private import tree_leaves, tree_unflatten

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
            n: random_like(torch.zeros(1, dtype=types[n].dtype), _take_hints(s), options.seed)
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


def _take_hints(shape: Shape) -> tuple[int, ...]:
    """A shape as it was when the program was exported."""
    return tuple(size if isinstance(size, int) else int(size.node.hint) for size in shape)


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
                want = _list_range(open_size)
            elif n == found[name][axis]:
                continue
            raise FrontendError(what, where=f"{name}, axis {axis}", got=f"{n} of {got}", want=want)
    return found if sizes else {}


def _list_range(allowed: Any) -> str:
    """The sizes that an export leaves open."""
    if allowed.upper.is_Integer:
        return f"{allowed.lower} to {allowed.upper}"
    return f"at least {allowed.lower}"


def _size(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> int:
    """A dimension where some symbols have a size; the others are as they were."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.free_symbols <= sizes.keys():
        return int(expression.subs(sizes))
    return int(size.node.hint)
