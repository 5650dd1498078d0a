"""What every front end offers: `accepts` a spec, `load` it into a `Graph`; and example tensors."""

import io
import json
import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from pipec.compiler.loaded import Loaded
from pipec.errors import FrontendError
from pipec.graph.ir import Source
from pipec.graph.tensor_type import has_data
from pipec.user_module import user_code

__all__ = ["AUTO", "AUTOCAST", "Frontend", "LoadOptions", "Loaded", "quiet", "user_code"]
AUTOCAST = ("bfloat16", "float16")
"""What `torch.autocast` casts to."""
AUTO = "auto"
"""Stands for the parts that a graph cannot hold, instead of their names."""


@dataclass(frozen=True)
class LoadOptions:
    """The options of a front end.

    Attributes:
        shapes: Shape per input name, for dimensions that the model file leaves open.
        bind: Values of inputs that are fixed at compile time, flattened.
        training: Trace in training mode, with the loss in the graph. Needs a loss. None: where
            the model brings one as its own part, or ``loss`` names one.
        trust: Allow formats that may run code while they are read.
        seed: Seed of the random weights and example inputs that a factory makes.
        loss: Loss of a model without one: ``path/file.py:function``, see `factory.call_loss`.
        scored: Give the loss and the model's outputs, in training mode or not.
        autocast: ``bfloat16`` or ``float16``: run model and loss under `torch.autocast` of it.
        open: Keep what depends on dimensions that a file leaves open as nodes, not as constants.
        paired: Take operators on quantised tensors as float ones between what turns them into real
            numbers and back.
        eager: Parts that run as they are, each call one node of the graph; ``auto`` alone: those
            that a graph cannot hold.

    Raises:
        FrontendError: Autocast knows no such dtype.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bind: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    training: bool | None = False
    trust: bool = False
    seed: int = 0
    loss: str = ""
    scored: bool = False
    autocast: str = ""
    open: bool = False
    paired: bool = False
    eager: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.autocast not in ("", *AUTOCAST):
            want = " or ".join(AUTOCAST)
            raise FrontendError("autocast knows no such dtype", got=self.autocast, want=want)

    @classmethod
    def of(cls, source: Source) -> "LoadOptions":
        """Those with which the model of a plan was read, as `record` wrote them.

        Raises:
            FrontendError: The record is malformed.
        """
        try:
            return msgspec.convert(source.options, cls)
        except msgspec.ValidationError as error:
            raise FrontendError("the plan's source options are malformed", got=error) from error

    def record(self, **more: object) -> dict[str, object]:
        """What the source of a graph remembers, as JSON has it: what is not as by default."""
        given, usual = (json.loads(json.dumps(asdict(o))) for o in (self, LoadOptions()))
        for name in ("trust", "scored"):  # of one run, not of the model
            del given[name]
        return {name: v for name, v in given.items() if v != usual[name]} | more

    @property
    def with_loss(self) -> bool:
        """Whether the graph has the loss."""
        return bool(self.training or self.scored)

    def decide_training(self, *, brings_loss: bool = False) -> "LoadOptions":
        """The same, with ``training`` decided: by default, whether there is a loss."""
        if self.training is not None:
            return self
        return replace(self, training=brings_loss or bool(self.loss))


class Frontend(ABC):
    """Reads one kind of model; registered by entry point in the group ``pipec.frontends``.

    Attributes:
        name: Short name (``torch``, ``pt2``, ``onnx``).
        pattern: What a spec of this kind looks like, for messages (``MODEL.onnx``).
        casts: Whether it traces Python code, which autocast can reach.
        runs_code: Whether reading a model runs code of the model's author.

    Example:
        >>> import pipec, torch
        >>> from pipec.frontends.torch_module import from_module
        >>> @pipec.register
        ... class Layers(pipec.Frontend):
        ...     name, pattern, runs_code = "layers", "layers:COUNT", False
        ...     def accepts(self, spec): return spec.startswith("layers:")
        ...     def load(self, spec, options):
        ...         layers = [torch.nn.Linear(4, 4) for _ in range(int(spec[7:]))]
        ...         return from_module(torch.nn.Sequential(*layers), torch.zeros(1, 4))
        >>> len(pipec.compile("layers:3", devices="1xv100").graph.calls)
        3
    """

    name: str
    pattern: str
    casts: bool = False
    runs_code: bool = True

    @abstractmethod
    def accepts(self, spec: str) -> bool:
        """Whether ``spec`` (a path, or ``file.py:factory``) looks like this front end's kind."""

    @abstractmethod
    def load(self, spec: str, options: LoadOptions) -> Loaded:
        """Read and trace the model.

        Raises:
            FrontendError: It cannot be read or traced.
        """


@contextmanager
def quiet() -> Iterator[None]:
    """Mute what torch warns and logs about its own internals inside the block.

    Standard error is held back until the block has succeeded: torch prints half a graph on it when
    it fails.
    """
    before, held = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(held):
            warnings.simplefilter("ignore")
            yield
        sys.stderr.write(held.getvalue())
    finally:
        logging.disable(before)


def resize_inputs(tensors: Mapping[str, Tensor], options: LoadOptions) -> dict[str, Tensor]:
    """The same tensors; random ones where ``options.shapes`` ask for another shape."""
    found = dict(tensors)
    for name in tensors.keys() & options.shapes.keys():
        if tensors[name].shape != options.shapes[name]:
            found[name] = random_like(tensors[name], options.shapes[name], options.seed)
    return found


def random_like(like: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random values: normal for floats; what stays in the range of ``like`` for integers.

    Raises:
        FrontendError: This machine has no memory for as many.
    """
    try:
        return _random(like, shape, seed)
    except RuntimeError as error:  # torch's own: it has no other for memory, or for sizes
        raise FrontendError(
            "an example of this shape cannot be made",
            got=f"{list(shape)} of {like.dtype}",
            want="what this machine's memory holds",
            hint="trace the model at a smaller batch or shape",
        ) from error


def _random(like: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    if not has_data(like):
        return torch.zeros(shape, dtype=like.dtype)
    generator = torch.Generator().manual_seed(seed)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, dtype=like.dtype, generator=generator)
    high = int(like.max()) + 1 if like.numel() else 1
    return torch.randint(0, max(high, 1), shape, generator=generator).to(like.dtype)
