"""A plan as tables for the terminal."""

import html
import io

from rich.console import Console
from rich.markup import escape

from pipec.cluster.units import show
from pipec.graph.printer import graph_to_python
from pipec.plan.model import STATE_WAITS, Plan, Stage
from pipec.report.plan_data import Data, make_saved_table, plan_data
from pipec.report.table import Table

_VALUES_SHOWN = 8


def plan_text(plan: Plan, width: int = 100) -> str:
    """The tables of `print_plan` as text."""
    console = Console(file=io.StringIO(), width=width, record=True, color_system=None)
    print_plan(plan, console)
    return console.export_text().rstrip()


def plan_html(plan: Plan) -> str:
    """The tables of `print_plan` for a notebook: text in one block, escaped."""
    return f"<pre>{html.escape(plan_text(plan, 120))}</pre>"


def stage_html(stage: Stage) -> str:
    """A stage's graph for a notebook: as Python, each node with its origin, escaped."""
    return f"<pre>{html.escape(graph_to_python(stage.graph))}</pre>"


def print_plan(plan: Plan, console: Console, heaviest: int = 10) -> None:
    """Print stages, balance, cuts, heaviest nodes, memory and notes."""
    data = plan_data(plan, heaviest)
    console.print(
        f"[bold]{escape(data['model'] or 'model')}[/] on {escape(data['cluster'])} "
        f"for {data['target']}: {data['nodes']} nodes, {len(data['stages'])} stages"
    )
    if not data["stages"]:
        return
    console.print(_stages(data))
    _print_balance(data, console)
    if data["cuts"]:
        console.print(_cuts(data))
    if data["heaviest"]:
        console.print(_heaviest(data))
    console.print(_memory(data))
    if data["idle_devices"]:
        devices = ", ".join(map(str, data["idle_devices"]))
        console.print(f"no stage is placed on device {devices}")
    if (saved := make_saved_table(data["stages"])) is not None:
        console.print(saved)
    if data["explored"]:
        console.print(_show_explored(data))
    _print_notes(data, console)


def _stages(data: Data) -> Table:
    table = Table(
        "stages",
        ("stage", "device", "graph", "bottleneck", "nodes", "weights", "interval", "latency"),
        right=4,
        texts=("bottleneck",),
        spare=("graph", "nodes", "latency"),
    )
    for s in data["stages"]:
        interval = s.get("interval_seconds", s["seconds"])
        table.add(
            str(s["stage"]),
            f"{','.join(map(str, s['devices']))} {s['device']}".strip(),
            s["graph"],
            s.get("bottleneck", ""),
            str(s["nodes"]),
            show(s["weight_bytes"], "B"),
            "" if interval is None else show(interval, "s"),
            show(s["latency_seconds"], "s") if "latency_seconds" in s else "",
        )
    return table


def _print_balance(data: Data, console: Console) -> None:
    balance = data["balance"]
    if balance is None:
        return
    gap = "proven optimal" if balance["proven"] else f"at most {balance['gap']:.1%} above optimum"
    step = f"step {show(balance['step_seconds'], 's')}, " if balance["step_seconds"] else ""
    if "round_seconds" in (data["schedule"] or {}):
        again = data["schedule"]["round_seconds"]
        step += f"without draining {show(again, 's')} a round, " if again else "only with --drain, "
    console.print(
        f"balance: slowest stage {show(balance['slowest_seconds'], 's')}, "
        f"mean/slowest {balance['mean_over_slowest']:.1%}, {step}"
        f"lower bound {show(balance['lower_bound_seconds'], 's')} ({gap}; "
        f"{escape(balance['answers'])}){_as_emitted(balance)}"
    )


def _as_emitted(balance: Data) -> str:
    """What the stages take that the backend made, where that is 1 % above the estimate or more."""
    emitted, bound = balance["emitted_seconds"], balance["lower_bound_seconds"]
    if balance["step_seconds"] or emitted is None or not bound:
        return ""
    if emitted < 1.01 * balance["slowest_seconds"]:
        return ""
    return f"; as emitted {show(emitted, 's')}, {emitted / bound - 1:.1%} above the bound"


def _cuts(data: Data) -> Table:
    columns = ("cut", "value", "type", "bytes")
    table = Table("values that cross each cut", columns, right=3, texts=("value", "type"))
    for cut in data["cuts"]:
        name, values = f"{cut['after']}|{cut['after'] + 1}", cut["values"]
        for v in values[:_VALUES_SHOWN]:
            kind = f"{v['dtype']}[{','.join(map(str, v['shape']))}]"
            table.add(name, v["value"], kind, show(v["nbytes"], "B"))
            name = ""
        more = f"+ {len(values) - _VALUES_SHOWN} more; " if len(values) > _VALUES_SHOWN else ""
        if len(values) != 1:
            table.add(name, f"{more}{len(values)} in all", "", show(cut["nbytes"], "B"))
    return table


def _heaviest(data: Data) -> Table:
    timed = any(n["seconds"] is not None for n in data["heaviest"])
    columns = ("node", "from", "op", "stage", *(["time"] if timed else []), "share")
    texts = ("node", "from", "op")
    table = Table("heaviest nodes", columns, right=3, texts=texts, spare=("op", "from"))
    for n in data["heaviest"]:
        table.add(
            n["node"],
            n["origin"],
            n["op"],
            str(n["stage"]),
            *([show(n["seconds"] or 0.0, "s")] if timed else []),
            f"{n['share']:.1%}",
        )
    return table


def _memory(data: Data) -> Table:
    waits = STATE_WAITS in data["options"]
    rest = "; the optimizer's state waits in host memory between steps" if waits else ""
    table = Table(f"memory per device{rest}", ("device", "needed", "there", "used"), right=1)
    for m in data["memory"]:
        table.add(
            f"{m['device']} {m['kind']}",
            show(m["needed_bytes"], "B"),
            show(m["memory_bytes"], "B"),
            f"{m['needed_bytes'] / m['memory_bytes']:.1%}" if m["memory_bytes"] else "",
        )
    return table


SHOWN = 12
"""Most schedules or candidates that are shown; the plan keeps all."""


def _show_explored(data: Data) -> Table:
    microbatches, tried = data["schedule"]["microbatches"], data["explored"]
    hidden = f"; {SHOWN} of {len(tried)}, all are in plan.json" if len(tried) > SHOWN else ""
    table = Table(
        f"schedules tried, {microbatches} microbatches{hidden}",
        ("schedule", "why", "step", "bubble", "memory"),
        right=2,
        texts=("why",),
    )
    for t in tried[:SHOWN]:
        played = t["seconds"] is not None
        table.add(
            t["schedule"],
            t["why"],
            show(t["seconds"], "s") if played else "",
            f"{t['bubble']:.1%}" if played else "",
            show(max(t["peak_bytes"], default=0), "B") if played else "",
        )
    return table


def _print_notes(data: Data, console: Console) -> None:
    if data["growth"]:
        console.print(
            f"note: the loss adds up over the batch (of one, two and three equal rows: "
            f"{escape(str(data['growth']))}); a step is the mean over microbatches"
        )
    for op in data["guessed"]:
        console.print(
            f"note: the cost of {escape(op)} is a guess, one FLOP per element; a formula for it: "
            "torch.utils.flop_counter.register_flop_formula"
        )
    for name, tied in data["tied"].items():
        stages = ", ".join(map(str, tied["stages"]))
        console.print(f"note: tied weight {escape(name)} is read by stages {stages}")
    for s in data["stages"]:
        for note in s.get("notes", ()):
            console.print(f"note: stage {s['stage']}: {escape(note)}")
