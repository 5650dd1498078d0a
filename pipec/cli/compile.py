"""``pipec compile``: a model in, balanced and checked stage artifacts out."""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pipec.cli.console import output
from pipec.cli.exploring import DEFAULTS, watched
from pipec.cli.options import cluster_of, devices_options, load_options, model_options
from pipec.cluster.cluster import Cluster, parse_cluster
from pipec.compiler.backend import load_backend
from pipec.compiler.driver import default_passes, emit, make_plan
from pipec.compiler.output import check_target
from pipec.compiler.pass_base import Pass
from pipec.compiler.pass_manager import parse_pipeline
from pipec.cost.table import CostTable
from pipec.errors import BackendError
from pipec.explore.rebatch import Rebatched
from pipec.explore.search import Search
from pipec.frontends.base import Loaded, LoadOptions
from pipec.frontends.load import load
from pipec.graph.ir import OutputKind
from pipec.plan.model import Plan
from pipec.report.plan import graph_text, plan_data, print_plan


@dataclass(frozen=True)
class _Options:
    """The command line of ``pipec compile``."""

    model: str
    target: str
    devices: str | None
    cluster: Path | None
    stages: int | None
    output: Path | None
    force: bool
    costs: Path | None
    schedule: str
    microbatches: int | None
    batch: int | None
    no_cache: bool
    precision: str
    calibrate: str
    simulate: bool
    rtl: bool
    pt2: bool
    passes: str | None
    print_between_passes: bool
    time_passes: bool
    as_json: bool
    shape: tuple[str, ...]
    bind: tuple[str, ...]
    training: bool | None
    loss: str
    trust: bool
    seed: int

    def load_options(self) -> LoadOptions:
        return load_options(vars(self))

    def pipeline(self) -> list[Pass]:
        """The passes that the options name, the default ones otherwise."""
        if self.passes is not None:
            return parse_pipeline(self.passes)
        return default_passes(stages=self.stages, schedule=self.schedule, microbatches=self.count)

    @property
    def count(self) -> int:
        """Microbatches of one step, where nothing is explored."""
        return 8 if self.microbatches is None else self.microbatches

    @property
    def explores(self) -> bool:
        """Whether all that can be varied is."""
        return self.schedule == "auto" and self.passes is None

    @property
    def settings(self) -> dict[str, object]:
        """What passes and the backend must remember."""
        return {name: getattr(self, name) for name in DEFAULTS}


@click.command()
@click.argument("model")
@click.option("--target", default="torch", show_default=True, help="Backend: torch, onnx, fpga.")
@devices_options
@click.option("--stages", type=int, help="Number of stages; as many as devices by default.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--force", is_flag=True, help="Replace the output directory if pipec wrote it.")
@click.option("--costs", type=click.Path(path_type=Path), help="Measured costs (pipec profile).")
@click.option(
    "--schedule",
    default="fastest",
    show_default=True,
    help="A schedule; fastest: of those with a flush, one stage per device; auto: what `pipec "
    "explore` finds, over stages, replicas, microbatches, recompute and offload too.",
)
@click.option("--microbatches", type=int, help="Microbatches of one step; 8, with auto any.")
@click.option("--batch", type=int, help="With auto: samples of one step.")
@click.option("--no-cache", is_flag=True, help="With auto: explore anew even if nothing changed.")
@click.option(
    "--precision",
    default="float32",
    show_default=True,
    help="Numbers on an FPGA: float32, bfloat16, float16, ap_fixed<W,I>, int8.",
)
@click.option(
    "--calibrate",
    default="random",
    show_default=True,
    help="FPGAs: inputs that ranges of values are taken from: random ones like the example "
    "inputs, or a .npz file with an array of frames per input.",
)
@click.option("--simulate", is_flag=True, help="FPGAs: simulate cycles, shrink FIFOs to fit them.")
@click.option("--rtl", is_flag=True, help="FPGAs: also write SystemVerilog to check cycles with.")
@click.option("--pt2", is_flag=True, help="torch: also write an exported program per stage.")
@click.option("--passes", help="Pass pipeline instead of the default; see `pipec passes`.")
@click.option("--print-between-passes", is_flag=True, help="Print the graph after every pass.")
@click.option("--time-passes", is_flag=True, help="Print the seconds of every pass.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's summary as JSON.")
@model_options
def command(**given: Any) -> None:
    """Compile MODEL: a .onnx, a .pt2, path/file.py:factory or package.module:factory.

    Without -o the plan is made, checked and shown, and nothing is written; without devices it is
    for two of the target's kind.
    """
    options = _Options(**given)
    _refuse_unused(options)
    console = Console(stderr=True)
    plan = _compile(options, console)
    if options.output is not None:
        with _doing(console, f"writing {options.output}"):
            emit(plan, options.output, force=options.force)
    if options.as_json:
        click.echo(json.dumps(plan_data(plan), indent=2))
    else:
        print_plan(plan, output())
    if options.output is not None:
        for remark in load_backend(plan.target).remarks(plan, options.output):
            console.print(remark, markup=False, highlight=False, soft_wrap=True)
        console.print(f"wrote [bold]{options.output}[/]; check it: pipec verify {options.output}")


def _refuse_unused(options: _Options) -> None:
    """An option that would have no effect is a misunderstanding.

    Raises:
        click.UsageError: Naming the option, and what it goes with.
    """
    context = click.get_current_context()
    given = {
        name
        for name in vars(options)
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    cases = (
        (not options.explores, {"batch", "no_cache"}, "goes with --schedule auto"),
        (options.passes is not None, {"schedule", "stages", "microbatches"},
         "has no effect beside --passes: write partition{stages=4}, schedule{generator=1f1b}"),
        (options.output is None, {"force"}, "goes with -o"),
    )  # fmt: skip
    for applies, names, why in cases:
        if applies and (unused := sorted(given & names)):
            shown = ", ".join("--" + name.replace("_", "-") for name in unused)
            raise click.UsageError(f"{shown} {why}")


def _compile(options: _Options, console: Console) -> Plan:
    cluster = _cluster(options, console)
    passes = [] if options.explores else options.pipeline()
    if options.output is not None:
        check_target(options.output, force=options.force)
    with _doing(console, f"reading {options.model}"):
        loaded = load(options.model, options.load_options())
    trains = bool(loaded.graph.outputs_of(OutputKind.LOSS))
    if trains and options.training is None and not options.loss:
        console.print("for training, as the factory returns a loss; --inference: forward alone")
    if options.explores and trains:
        return _explored(options, cluster, loaded, console)
    if options.explores:
        passes = default_passes(stages=options.stages, microbatches=options.count)
    with _doing(console, "compiling") as status:

        def observe(done: Pass, before: Plan, plan: Plan, seconds: float) -> None:
            """Tell of a pass as the options want it."""
            del before
            status.update(f"compiling: {done.name} done")
            if options.time_passes:
                console.print(f"{seconds:8.3f} s  {done}")
            if options.print_between_passes:
                console.print(f"[bold]after {done}[/]")
                _print_graphs(plan, console)

        return make_plan(
            loaded.graph,
            cluster,
            options.target,
            passes=passes,
            costs=_costs(options, loaded),
            options={**options.settings, **_calibration(options, loaded)},
            observe=observe,
        )


def _cluster(options: _Options, console: Console) -> Cluster:
    """The devices that are named, or those that the backend assumes."""
    backend = load_backend(options.target)
    if options.devices is not None or options.cluster is not None:
        cluster = cluster_of(options.devices, options.cluster)
        boards = [d.kind for d in cluster.devices if d.family == "fpga"]
        if boards and options.target in ("torch", "onnx"):
            raise BackendError(
                f"the target {options.target} does not run on FPGAs",
                got=boards[0],
                hint="--target fpga, or name other devices",
            )
        return cluster
    console.print(f"for {backend.devices}, as neither --devices nor --cluster is given")
    return parse_cluster(backend.devices)


def _explored(options: _Options, cluster: Cluster, loaded: Loaded, console: Console) -> Plan:
    """The plan of the best candidate; what `pipec explore` chooses on the same inputs."""
    search = Search(
        Rebatched(loaded.graph, options.model, options.load_options()),
        cluster,
        options.target,
        batch=options.batch,
        stages=options.stages,
        microbatches=options.microbatches,
        costs=_costs(options, loaded),
        settings=options.settings,
        cached=not options.no_cache,
    )
    return watched(search, console)[1]


def _calibration(options: _Options, loaded: Loaded) -> dict[str, object]:
    """Where narrow numbers take their ranges from."""
    if options.precision == "float32":
        return {}
    from pipec.backends.fpga.quantise.samples import input_ranges

    ranges = input_ranges(loaded.example_inputs)
    return {"calibrate": options.calibrate, "input_ranges": ranges}


def _costs(options: _Options, loaded: Loaded) -> CostTable | None:
    if options.costs is None:
        return None
    from pipec.cost.file import load_costs

    return load_costs(options.costs, loaded.graph)


def _print_graphs(plan: Plan, console: Console) -> None:
    graphs = [s.graph for s in plan.stages] or [plan.graph]
    for graph in graphs:
        console.print(graph_text(graph), markup=False, highlight=False, soft_wrap=True)


def _doing(console: Console, what: str) -> AbstractContextManager[Any]:
    return console.status(what)
