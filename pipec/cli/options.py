"""Options that several commands share: how a model is read, and where the plan goes.

A shell offers names that pipec knows behind an option: in Bash after
``eval "$(_PIPEC_COMPLETE=bash_source pipec)"`` (zsh: ``zsh_source``, fish: ``fish_source``).
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.cluster.file import load_cluster
from pipec.cluster.presets import PRESETS
from pipec.errors import FrontendError
from pipec.frontends.base import AUTO, LoadOptions, user_code
from pipec.registry import entries

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(list_names: Callable[[], Iterable[str]], separator: str = "\0") -> _Complete:
    """What offers names to a shell, for what stands behind the last separator."""

    def complete(_: click.Context, __: click.Parameter, text: str) -> list[CompletionItem]:
        before, found, last = text.rpartition(separator)
        names = sorted(n for n in list_names() if n.startswith(last))
        return [CompletionItem(before + found + name) for name in names]

    return complete


complete_schedules = _completing(lambda: ("auto", "fastest", *entries("pipec.schedules")))
"""Offers the schedules, and how one may be found."""
complete_passes = _completing(lambda: entries("pipec.passes"), ",")
"""Offers the passes for the last place of a pipeline ``a,b{k=v},c``."""
_complete_kinds = _completing(lambda: PRESETS, "x")


def complete_devices(ctx: click.Context, param: click.Parameter, text: str) -> list[CompletionItem]:
    """Offer the kinds of devices behind the count of the last part of ``2xa,3xb``."""
    return _complete_kinds(ctx, param, text or "2x")


_F = TypeVar("_F", bound=Callable[..., object])


def model_options(function: _F) -> _F:
    """Add the options that say how a model is read; `load_options` turns them into one value."""
    for option in (
        click.option("--seed", default=0, show_default=True, help="Seed of a factory's weights."),
        click.option("--trust", is_flag=True, help="Allow formats that run code on load (.pt2)."),
        click.option(
            "--loss",
            default="",
            metavar="FILE.py:FUNCTION",
            help="Loss of a model without one: a function that returns the loss, or the loss and "
            "an example target. For training.",
        ),
        click.option(
            "--training/--inference",
            default=None,
            help="Trace with the loss, in training mode, or the forward pass alone; training if "
            "the factory returns a loss or --loss names one.",
        ),
        click.option(
            "--autocast",
            default="",
            metavar="DTYPE",
            help="bfloat16 or float16: as if model and loss were run under torch.autocast.",
        ),
        click.option(
            "--eager",
            is_flag=False,
            flag_value=AUTO,
            default="",
            metavar="[PATTERN,...]",
            help="Parts that run as modules under autograd, such as layers.*.mlp; without a value, "
            "those that a graph cannot hold.",
        ),
        click.option(
            "--bind",
            multiple=True,
            metavar="NAME=V[,V...]",
            help="Value of an input or of a named dimension that is fixed at compile time; a "
            "dimension that is bound has this size alone.",
        ),
        click.option(
            "--shape",
            multiple=True,
            metavar="INPUT=D[,D...]",
            help="Shape of an input whose dimensions the model leaves open: the size to plan for. "
            "The target onnx leaves them open for ONNX files.",
        ),
    ):
        function = option(function)
    return function


def load_options(given: Mapping[str, Any]) -> LoadOptions:
    """How a model is read, from the values of `model_options` by name.

    Raises:
        FrontendError: A text cannot be read.
        click.UsageError: A loss is named for the forward pass alone.
    """
    if given["loss"] and given["training"] is False:
        raise click.UsageError("--loss is for training, not beside --inference")
    return LoadOptions(
        parse_shapes(given["shape"]),
        parse_assignments(given["bind"], "--bind"),
        training=given["training"],
        trust=given["trust"],
        seed=given["seed"],
        loss=given["loss"],
        autocast=given["autocast"],
        eager=tuple(given["eager"].split(",")) if given["eager"] else (),
    )


target_option = click.option(
    "--target",
    default="torch",
    show_default=True,
    shell_complete=_completing(lambda: entries("pipec.backends")),
    help="What to emit for.",
)
"""``--target``."""


def devices_options(function: _F) -> _F:
    """Add the two options that name devices; `cluster_of` reads them."""
    return click.option(
        "--devices",
        shell_complete=complete_devices,
        help="Such as 4xvcu118 or 2xvcu129,2xvcu118, in pipeline order.",
    )(
        click.option("--cluster", type=click.Path(path_type=Path), help="Cluster file (TOML).")(
            function
        )
    )


costs_option = click.option(
    "--costs",
    help="Measured costs (pipec profile), or silicon:KIND[,KIND]: tables of measured kernels "
    "for these kinds of devices, such as silicon:a100.",
)
"""``--costs``."""

asynchronous_option = click.option(
    "--asynchronous",
    is_flag=True,
    help="Explore schedules without a flush too: PipeDream, 2BW, PipeMare, PipeFB.",
)
"""``--asynchronous``."""


def cluster_of(devices: str | None, file: Path | None) -> Cluster:
    """The cluster that exactly one of ``--devices`` and ``--cluster`` names.

    Raises:
        click.UsageError: None or both of them are given.
        ClusterError: What they name is no cluster.
    """
    if (devices is None) == (file is None):
        raise click.UsageError(
            "name the devices with one of --devices and --cluster, such as --devices 4xvcu118; "
            "`pipec devices` lists the kinds"
        )
    return load_cluster(file) if file else parse_cluster(devices or "")


def parse_assignments(texts: tuple[str, ...], option: str) -> dict[str, tuple[float, ...]]:
    """``("x=1,3", "n=2")`` as ``{"x": (1, 3), "n": (2,)}``; nothing behind ``=`` is no number.

    Raises:
        FrontendError: A text is not ``name=[number[,number...]]``.

    Example:
        >>> parse_assignments(("input=1,3,224,224", "axes="), "--shape")
        {'input': (1, 3, 224, 224), 'axes': ()}
    """
    found: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, _, numbers = text.rpartition("=")
        try:
            values = tuple(_number(n) for n in numbers.split(",")) if numbers else ()
        except ValueError:
            values, name = (), ""
        if not name or name in found:
            want = "NAME=[number[,number...]], every NAME once"
            raise FrontendError(f"{option} cannot be read", got=text, want=want)
        found[name] = values
    return found


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """The values of ``--shape`` as shapes.

    Raises:
        FrontendError: A dimension is not a whole number of at least 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, numbers in parse_assignments(texts, "--shape").items():
        if any(not float(n).is_integer() or n < 0 for n in numbers):
            raise FrontendError(
                "a shape cannot be read",
                where=f"--shape {name}",
                got=list(numbers),
                want="whole numbers of at least 0",
            )
        found[name] = tuple(int(n) for n in numbers)
    return found


def _number(text: str) -> float:
    return int(text) if text.strip().lstrip("-").isdigit() else float(text)


allow_namespace_option = click.option(
    "--allow-namespace",
    multiple=True,
    metavar="NAME[=MODULE]",
    help="Allow ops of torch.ops.NAME; MODULE is imported to define them.",
)
"""``--allow-namespace``; `import_namespaces` reads its values."""


def import_namespaces(texts: tuple[str, ...]) -> frozenset[str]:
    """Import the modules that the user named.

    Returns:
        The allowed namespaces.

    Raises:
        FrontendError: A module cannot be imported.
    """
    allowed = set()
    for text in texts:
        name, _, module = text.partition("=")
        allowed.add(name)
        if module:
            with user_code(f"the module of --allow-namespace {text} cannot be imported"):
                importlib.import_module(module)
    return frozenset(allowed)
