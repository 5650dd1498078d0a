"""The torch front end: an `nn.Module`, through the Python API or by the name of its factory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import BoundArguments

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pipec.autodiff.recompute import is_random
from pipec.compiler.loaded import Gradients
from pipec.errors import FrontendError, NoLossError
from pipec.frontends.base import (
    AUTO,
    Frontend,
    Loaded,
    LoadOptions,
    random_like,
    resize_inputs,
    user_code,
)
from pipec.frontends.culprits import culprits
from pipec.frontends.factory import FactoryResult, as_loss, call_factory, call_loss, is_factory
from pipec.frontends.leaves import Call, write_value
from pipec.frontends.trace import MODEL, Flat, Loss, check_loss, trace
from pipec.graph.ir import MEMORY, Graph, Source
from pipec.graph.tensor_type import has_data, weights_digest


class TorchModuleFrontend(Frontend):
    """Reads ``path/file.py:factory`` and ``package.module:factory``."""

    name = "torch"
    pattern = "path/file.py:factory"
    casts = True

    def accepts(self, spec: str) -> bool:
        """Whether ``spec`` names a factory."""
        return is_factory(spec)

    def load(self, spec: str, options: LoadOptions) -> Loaded:
        """Call the factory and trace what it returns.

        Raises:
            FrontendError: The factory is missing, raises or returns nonsense, or its model cannot
                be traced.
        """
        made = call_factory(spec, options.seed)
        if options.loss:
            made = replace(made, loss=call_loss(options.loss, options.seed))
        return _load(made, options, Source("factory", spec, "", {}))


def from_module(
    module: nn.Module,
    example_inputs: object,
    loss: object = None,
    options: LoadOptions | None = None,
) -> Loaded:
    """Trace a module.

    Args:
        module: The model; parameters may be fake or on ``meta``. It is left as it was.
        example_inputs: A tensor, a tuple of positional or a mapping of keyword arguments, or all
            of them bound to ``module.forward``.
        loss: A callable of the outputs, or (callable, target); see `Loss`. With a loss, the model
            is traced in training mode unless ``options`` say otherwise.
        options: What else there is to say.

    Raises:
        FrontendError: The inputs do not fit, or the model cannot be traced.

    Example:
        >>> loaded = from_module(nn.Linear(3, 2), torch.ones(1, 3))
        >>> [i.name for i in loaded.graph.inputs], [o.name for o in loaded.graph.outputs]
        (['weight', 'bias', 'input'], ['output'])
    """
    name = type(module).__name__
    options = options or LoadOptions(training=loss is not None)
    made = FactoryResult(module, example_inputs, None if loss is None else as_loss(loss, name))
    return _load(made, options, Source(MEMORY, name, "", {}))


def _load(made: FactoryResult, options: LoadOptions, source: Source) -> Loaded:
    module, where = made.module, type(made.module).__name__
    options = options.decide_training(brings_loss=made.loss is not None)
    if options.bind:
        hint = "--bind is for files; a factory fixes what it wants to"
        raise FrontendError("inputs of a module cannot be bound", got=[*options.bind], hint=hint)
    args, kwargs = _arguments(made, options)
    call = Call(module, args, kwargs)
    loss = (made.loss or Loss(_own_loss)) if options.with_loss else None
    if loss:
        loss = replace(loss, alone=not options.scored)
    targets = loss.inputs if loss else {}
    _check_shapes(options, [*call.tensors, *targets], where)
    call.tensors.update(resize_inputs(call.tensors, options))
    args, kwargs = call.arguments(list(call.tensors.values()))
    if loss:
        loss = loss.with_inputs(resize_inputs(targets, options))
    if options.eager and loss and not isinstance(loss.fn, nn.Module):
        loss = replace(loss, fn=_FunctionModule(loss.fn))
    flat = Flat(module, call, loss, autocast=options.autocast)
    eager = _eager(flat, options)
    own = replace(options, eager=tuple(eager), open=False, paired=False)
    target = write_value(loss.target, iter(loss.inputs)) if loss else None
    used = own.record(call=call.record, target=target)
    digest = source.sha256 or weights_digest(dict(flat.state_dict()))
    source = replace(source, sha256=digest, options=used)
    with mode(module, training=bool(options.training)):
        graph = trace(
            module,
            args,
            kwargs=kwargs,
            loss=loss,
            source=source,
            eager=eager,
            differentiable=bool(options.training),
            autocast=options.autocast,
        )

    def resize(shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        return _load(made, replace(options, shapes={**options.shapes, **shapes}), source).graph

    known = bool(options.training) and not any(map(is_random, graph.calls))
    original = _original(flat, training=bool(options.training))
    gradients = _gradients(flat) if known else None
    return Loaded(graph, flat.inputs, original, gradients, resized=resize)


class _FunctionModule(nn.Module):
    """A function as a part of a model."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **kwargs)


def _eager(flat: Flat, options: LoadOptions) -> list[str]:
    """The parts that run as they are; where none must, that they are to be looked for again."""
    if options.eager != (AUTO,):
        return list(options.eager)
    trained = bool(options.training)
    with mode(flat.model, training=trained):
        return culprits(flat, tracked=trained, autocast=options.autocast) or [AUTO]


def _own_loss(outputs: object) -> object:
    """The loss of a model that computes its own: ``outputs.loss``, or all that it returns."""
    loss = getattr(outputs, "loss", outputs)
    if isinstance(outputs, Mapping) and "loss" in outputs:
        loss = outputs["loss"]
    return check_loss(loss, NoLossError, "let the factory return a loss as its third part")


def _arguments(
    made: FactoryResult, options: LoadOptions
) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Positional and keyword arguments; made from ``options.shapes`` where there are none."""
    if isinstance(made.inputs, Tensor):
        return (made.inputs,), {}
    if isinstance(made.inputs, BoundArguments):
        return made.inputs.args, made.inputs.kwargs
    if isinstance(made.inputs, Mapping):
        return (), dict(made.inputs)
    if isinstance(made.inputs, list | tuple):
        return tuple(made.inputs), {}
    if made.inputs is not None:
        raise FrontendError(
            "the example inputs cannot be used",
            where=type(made.module).__name__,
            got=type(made.inputs).__name__,
            want="a tensor, a tuple or a dict",
        )
    if not options.shapes:
        raise FrontendError(
            "the factory gave no example inputs",
            where=type(made.module).__name__,
            hint="return (module, inputs), or give --shape input=1,3,224,224",
        )
    like = next((p for p in made.module.parameters() if p.is_floating_point()), torch.empty(0))
    return (), {k: random_like(like, v, options.seed) for k, v in options.shapes.items()}


def _check_shapes(options: LoadOptions, inputs: Iterable[str], where: str) -> None:
    for name in options.shapes:
        if name not in inputs:
            raise FrontendError("no such input", where=where, got=name, want=", ".join(inputs))


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The module in training or evaluation mode; each part's own mode comes back afterwards.

    A model that is in training mode already keeps parts that its author froze with ``eval()``.
    """
    before = {m: m.training for m in module.modules()}
    if not (training and module.training):
        module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


def _original(flat: Flat, *, training: bool) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        where = type(flat.model).__name__
        missing = [name for name in flat.inputs if name not in inputs]
        if missing:
            raise FrontendError("inputs are missing", where=where, got=", ".join(missing))
        if not all(map(has_data, flat.state_dict().values())):
            raise FrontendError(
                "the model cannot be run: its weights have no data",
                where=where,
                hint="build it on a real device to verify it",
            )
        buffers = {name: b.clone() for name, b in flat.named_buffers()}
        tensors = tuple(inputs[name].clone() for name in flat.inputs)
        with torch.no_grad(), mode(flat.model, training=training), user_code("the model raised"):
            values = functional_call(flat, buffers, tensors)
        return dict(zip(flat.outputs, values, strict=True))

    return run


def _gradients(flat: Flat) -> Gradients:
    def run(inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients of the loss by eager autograd; zeros where it depends on nothing."""
        own = ((n, p, weights.get(n.removeprefix(MODEL), p)) for n, p in flat.named_parameters())
        held = {n: w.detach().clone().requires_grad_(p.requires_grad) for n, p, w in own}
        trained = {n: p for n, p in held.items() if p.requires_grad}
        state = {**held, **{name: b.clone() for name, b in flat.named_buffers()}}
        tensors = tuple(inputs[name].clone() for name in flat.inputs)
        with torch.enable_grad(), mode(flat.model, training=True), user_code("the model raised"):
            (loss,) = functional_call(flat, state, tensors)
            found = torch.autograd.grad(
                loss, list(trained.values()), allow_unused=True, materialize_grads=True
            )
        return {n.removeprefix(MODEL): g for n, g in zip(trained, found, strict=True)}

    return run
