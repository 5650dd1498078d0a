"""The ``.pt2`` front end: a program that `torch.export.save` wrote."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export import graph_signature as export

from pipec.errors import FrontendError, NoLossError
from pipec.frontends.base import Frontend, Loaded, LoadOptions, quiet, user_code
from pipec.frontends.hygiene import Naming, Traced, clean_graph
from pipec.frontends.leaves import name_tensors
from pipec.frontends.one_size import arguments, at_one_size, example_inputs, find_axes
from pipec.frontends.trace import decompose
from pipec.graph.axes import Axes
from pipec.graph.ir import Graph, Source
from pipec.graph.rules import verify
from pipec.graph.torch_private import tree_unflatten
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
            raise FrontendError("no such file", got=spec, hint="check the path")
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
        return _load(program, options, Source("pt2", spec, digest, _record_options(options)))


def _record_options(options: LoadOptions) -> dict[str, object]:
    used: dict[str, object] = {"training": options.training, "seed": options.seed}
    if options.shapes:
        used["shapes"] = {name: list(shape) for name, shape in sorted(options.shapes.items())}
    return used


def _load(program: ExportedProgram, options: LoadOptions, source: Source) -> Loaded:
    inputs = example_inputs(program, options)
    axes = Axes()
    if options.open and not options.training:
        axes = find_axes(program, inputs)
        source = replace(source, options={**source.options, **({"open": True} if axes else {})})
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
            program.graph.output_node().args[0],
            program.graph_signature.output_specs,
            strict=True,
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
