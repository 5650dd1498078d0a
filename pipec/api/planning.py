"""From a model to a plan: `compile`, `load` and `explore`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipec.api.reading import Devices, Model, read_cluster, read_model
from pipec.api.registering import name_of, register
from pipec.api.request import Passes, Request
from pipec.arguments import check_arguments
from pipec.cluster.cluster import Cluster
from pipec.compiler.backend import Backend, check_devices, load_backend
from pipec.errors import PipecError
from pipec.explore.explore import Exploration
from pipec.frontends.base import AUTO, Loaded, LoadOptions
from pipec.plan.model import Plan
from pipec.plan.store import load_plan


@check_arguments
def compile(  # noqa: A001
    model: Model,
    inputs: object = None,
    devices: Devices | None = None,
    *,
    loss: object = None,
    target: str | type[Backend] = "torch",
    schedule: str | Callable[..., object] = "fastest",
    stages: int | None = None,
    microbatches: int | None = None,
    batch: int | None = None,
    asynchronous: bool = False,
    passes: Passes = None,
    costs: str | os.PathLike[str] | None = None,
    recompute: str | Sequence[str] = (),
    offload: str | Sequence[str] = (),
    offload_optimizer: bool = False,
    training: bool | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Sequence[float]] | None = None,
    autocast: str = "",
    eager: bool | str | Sequence[str] = False,
    seed: int = 0,
    trust: bool = False,
    **settings: object,
) -> Plan:
    """Trace a model, cut it into balanced stages, place and order them: the plan.

    Args:
        model: An `nn.Module`, or a path: ``net.onnx``, ``net.pt2``, ``file.py:factory``.
        inputs: Example inputs of a module: a tensor, a tuple, or a dict by keyword.
        devices: ``"4xh100"``, ``"2xvcu129,2xvcu118"``, a list of such, a cluster file (TOML), or
            a `Cluster`; two of the target's kind if not given.
        loss: For training: a callable of the outputs, or (callable, target).
        target: ``torch``, ``onnx``, ``fpga``, or a subclass of `Backend`.
        schedule: A name with its options (``interleaved{chunks=2}``), ``fastest``, ``auto``
            (everything that can vary is explored), or a function of your own.
        stages: Number of stages; as many as devices if not given.
        microbatches: Microbatches of one step; 8 if not given, any with ``auto``.
        batch: With ``auto``: samples of one step.
        asynchronous: With ``auto``: whether schedules without a flush are tried too.
        passes: Instead of the default pipeline: text, or texts and `Pass` objects, among which
            ``"default"`` stands for the whole default pipeline.
        costs: A file of measured costs (``pipec profile``), or ``silicon:a100``: kinds of devices
            whose nodes are timed by tables of measured kernels.
        recompute: Modules whose saved values the backward computes again, ``*`` for any text:
            ``"model.layers.*.mlp"``; or names of values.
        offload: The same, of what waits in host memory for the backward.
        offload_optimizer: Whether the optimizer's state waits there too, between steps.
        training: Whether a model from a path is traced with its loss; by default if it has one.
        shapes: Shapes of inputs whose dimensions a file leaves open.
        bind: Values of inputs that are fixed.
        autocast: ``bfloat16`` or ``float16``: as if model and loss were run under `torch.autocast`;
            weights and their updates stay in float32. Training in float16 wants ``loss_scale`` of
            the `Pipeline`.
        eager: Parts of the model that run as plain modules under autograd, by name (``*`` for any
            text); True for those that a graph cannot hold. The model's forward runs once for it.
        seed: Seed of a factory's weights.
        trust: Allow formats that run code when they are read (``.pt2``).
        settings: Options of the target, such as ``precision="int8"``.

    Raises:
        PipecError: What is wrong with the model, the devices or an option, with a hint.

    Example:
        >>> import pipec, torch
        >>> layers = [torch.nn.Linear(64, 64) for _ in range(8)]
        >>> plan = pipec.compile(torch.nn.Sequential(*layers), torch.zeros(4, 64), "4xh100")
        >>> len(plan.stages), plan.schedule.name, [(c.src, c.dst) for c in plan.channels]
        (4, 'inference', [(0, 1), (1, 2), (2, 3)])
    """
    backend = load_backend(target if isinstance(target, str) else register(target).name)
    name, cluster = name_of(schedule), _cluster(backend, devices)
    file = os.fspath(costs) if isinstance(costs, os.PathLike) else costs
    request = Request(
        backend, cluster, name, stages, microbatches, batch, passes, file, settings,
        asynchronous=asynchronous, recompute=_as_patterns(recompute), offload=_as_patterns(offload),
        offload_optimizer=offload_optimizer,
    )  # fmt: skip
    if loss is not None and training is False:
        raise PipecError("a loss is for training", got="loss beside training=False")
    sizes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    fixed = {name: tuple(values) for name, values in (bind or {}).items()}
    options = LoadOptions(
        sizes, fixed, training=training, trust=trust, seed=seed, autocast=autocast,
        **backend.reads,
        eager=((AUTO,) if eager else ()) if isinstance(eager, bool) else _as_patterns(eager),
    )  # fmt: skip
    return request.plan(*_read_model(model, inputs, loss, options))


@check_arguments
def load(directory: str | os.PathLike[str]) -> Plan:
    """Read a plan that ``plan.save`` or ``pipec compile -o`` wrote; weights are mapped, not read.

    Args:
        directory: The output of a compilation.

    Raises:
        PlanError: A file is missing or changed.

    Example:
        >>> import pipec, tempfile, torch
        >>> plan = pipec.compile(torch.nn.Linear(4, 4), torch.zeros(1, 4), "1xcpu")
        >>> directory = tempfile.mkdtemp() + "/out"
        >>> plan.save(directory)
        >>> pipec.load(directory).facts() == plan.facts()
        True
    """
    return load_plan(Path(directory))


@check_arguments
def explore(
    model: Model,
    inputs: object = None,
    devices: Devices | None = None,
    *,
    loss: object = None,
    target: str = "torch",
    batch: int | None = None,
    stages: int | None = None,
    microbatches: int | None = None,
    schedules: Sequence[str] = (),
    asynchronous: bool = False,
    cached: bool = True,
) -> Exploration:
    """Predict every schedule, depth, replication and microbatch size, fastest first.

    Args:
        model: As in `compile`; one without a loss is run forward.
        inputs: As in `compile`.
        devices: As in `compile`.
        loss: As in `compile`.
        target: As in `compile`.
        batch: Samples of one step; 8 traced batches per device if not given.
        stages: Number of stages, if it is fixed.
        microbatches: Microbatches of one step, if they are fixed.
        schedules: Names instead of those of the devices' family.
        asynchronous: Whether schedules without a flush are among those of the family.
        cached: Whether an equal exploration of before is taken.

    Raises:
        PipecError: What is wrong with the model, the devices or an option, with a hint.

    Example:
        >>> import pipec, torch
        >>> model, x = torch.nn.Sequential(*[torch.nn.Linear(64, 64)] * 4), torch.zeros(4, 64)
        >>> loss = lambda y: y.square().mean()
        >>> found = pipec.explore(model, x, "2xv100", loss=loss, batch=8, cached=False)
        >>> found.predictions[0] is found.best
        True
    """
    backend = load_backend(target)
    request = Request(
        backend, _cluster(backend, devices), "auto", stages, microbatches, batch, cached=cached,
        schedules=tuple(schedules), asynchronous=asynchronous,
    )  # fmt: skip
    return request.search(*_read_model(model, inputs, loss, LoadOptions(training=None))).run()[0]


def _as_patterns(patterns: str | Sequence[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _cluster(backend: Backend, devices: Devices | None) -> Cluster:
    """The devices that are named, or two of the target's usual kind."""
    cluster = read_cluster(backend.devices if devices is None else devices)
    check_devices(backend, cluster)
    return cluster


def _read_model(
    model: Model, inputs: object, loss: object, options: LoadOptions
) -> tuple[Loaded, str, LoadOptions]:
    """A model, where it can be read again (empty: nowhere), and how it was read."""
    options = replace(options, loss=loss if isinstance(loss, str) else "")
    loaded = read_model(model, inputs, loss, options)
    return loaded, "" if loaded.graph.source.kind == "memory" else str(model), options
