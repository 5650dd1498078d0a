"""From ``stage.json`` to SystemVerilog: a module of engines and streams, and a bench around it.

```text
stage_top.sv    module <name>: one instance per engine, one per stream; AXI-like ports
bench.sv        module bench_<name>: inputs always there, outputs always taken; probes; a log
top.sv          all benches on one clock
```

The engines (``sv/*.sv``) are hardware: counters, line buffers, multipliers and adder trees with
their pipeline registers, FIFOs with credits. Nothing is taken from the run tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rtl.style import Style
from benchmarks.rtl.units import BITS, SALTED, unit_of

Json = dict[str, Any]
SOURCES = ("stage_top.sv", "bench.sv", "top.sv")


@dataclass(frozen=True)
class Wiring:
    """Streams and engines of a stage by number.

    Attributes:
        record: The parsed ``stage.json``.
        streams: Name to number; ``lanes`` name to elements per token.
    """

    record: Json
    streams: Mapping[str, int]
    lanes: Mapping[str, int]

    @classmethod
    def of(cls, record: Json) -> "Wiring":
        """Number a stage's streams."""
        fifos = record["fifos"]
        return cls(
            record,
            {f["name"]: k for k, f in enumerate(fifos)},
            {f["name"]: f["lanes"] for f in fifos},
        )

    def width(self, name: str) -> int:
        """Bits of a token."""
        return self.lanes[name] * BITS

    def outside(self, side: str) -> list[Json]:
        """Streams without producer (``from``) or consumer (``to``)."""
        return [f for f in self.record["fifos"] if f[side] is None]


def with_ports(record: Json) -> Json:
    """The same stage with its AXI ports as engines: one beat a cycle in or out of a FIFO."""
    fifos = {f["name"]: dict(f) for f in record["fifos"]}
    engines = list(record["engines"])
    for port, stream in record["ports"].items():
        inner = fifos[stream]
        pin = {**inner, "name": f"{port}_pin", "initial": 0}
        ends = (pin["name"], stream) if inner["from"] is None else (stream, pin["name"])
        inner["from"], inner["to"] = inner["from"] or port, inner["to"] or port
        pin["from"], pin["to"] = (None, port) if ends[0] == pin["name"] else (port, None)
        nest = {"rows": inner["tokens"], "channels": inner["lanes"], "lanes": inner["lanes"]}
        engines.append(
            {"name": port, "kind": "map", "nest": {**nest, "steps": []}, "ii": 1, "depth": 1,
             "inputs": [ends[0]], "outputs": [ends[1]], "runs": [[inner["tokens"], 1, 1, 1]]}
        )  # fmt: skip
        fifos[pin["name"]] = pin
    return {**record, "ports": {}, "engines": engines, "fifos": list(fifos.values())}


def library() -> dict[str, str]:
    """The engine modules by file name."""
    folder = Path(__file__).parent / "sv"
    found = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir()}
    return {name: text for name, text in sorted(found.items()) if name.endswith(".sv")}


def clock_main() -> str:
    """The C++ main of a Verilator model."""
    return (Path(__file__).parent / "sv" / "main.cpp").read_text(encoding="utf-8")


def stage_verilog(record: Json, name: str, style: Style = Style.FREE) -> str:
    """The module of a stage.

    Args:
        record: The parsed ``stage.json``.
        name: Module name.
        style: How its pipelines stall.

    Raises:
        BackendError: An engine has no module.
    """
    wiring = Wiring.of(record)
    ports = ["input logic clk", "input logic rst"]
    for fifo in wiring.outside("from"):
        k, top = wiring.streams[fifo["name"]], wiring.width(fifo["name"]) - 1
        ports += [
            f"input logic s{k}_valid",
            f"input logic [{top}:0] s{k}_data",
            f"output logic s{k}_take",
        ]
    for fifo in wiring.outside("to"):
        k, top = wiring.streams[fifo["name"]], wiring.width(fifo["name"]) - 1
        ports += [
            f"input logic s{k}_ready",
            f"output logic s{k}_push",
            f"output logic [{top}:0] s{k}_push_data",
        ]
    lines = [f"// {record['stage']}", f"module {name} (", "  " + ",\n  ".join(ports), ");"]
    for fifo in record["fifos"]:
        lines += _stream(fifo, wiring, style)
    for number, engine in enumerate(record["engines"]):
        lines += _engine(number, engine, wiring, style)
    return "\n".join([*lines, "endmodule"]) + "\n"


def _stream(fifo: Json, wiring: Wiring, style: Style) -> list[str]:
    """Nets of a stream, and its FIFO if both ends are inside."""
    name = fifo["name"]
    k, width = wiring.streams[name], wiring.width(name)
    lines = [f"  // s{k}: {name}"]
    inner = fifo["from"] is not None and fifo["to"] is not None
    if inner:
        lines += [
            f"  logic s{k}_valid, s{k}_take, s{k}_ready, s{k}_push;",
            f"  logic [{width - 1}:0] s{k}_data, s{k}_push_data;",
        ]
    if fifo["from"] is not None:
        lines.append(f"  logic s{k}_claim, s{k}_en, s{k}_stall;")
    if inner:
        depth = next(e["depth"] for e in wiring.record["engines"] if e["name"] == fifo["from"])
        lines.append(
            f"  stream #(.WIDTH({width}), .DEPTH({fifo['depth']}), .LATENCY({depth}), "
            f".INITIAL({fifo['initial']}), .STYLE({style.number})) u_s{k} (\n"
            f"    clk, rst, s{k}_claim, s{k}_ready, s{k}_push, s{k}_stall, s{k}_en, "
            f"s{k}_push_data,\n    s{k}_valid, s{k}_data, s{k}_take);"
        )
    elif fifo["from"] is not None:
        lines.append(f"  assign s{k}_stall = 1'b0;")
    return lines


def _concatenate(names: Sequence[str]) -> str:
    """A concatenation whose first element is the lowest."""
    return "{" + ", ".join(reversed(names)) + "}"


def _engine(number: int, engine: Json, wiring: Wiring, style: Style) -> list[str]:
    ins = [wiring.streams[s] for s in engine["inputs"]]
    outs = [wiring.streams[s] for s in engine["outputs"]]
    unit, e = unit_of(engine, wiring.lanes), f"e{number}"
    parameters = dict(unit.parameters)
    if engine["kind"] in SALTED:
        parameters["SALT"] = 2 * number
    values = ", ".join(f".{k}({v})" for k, v in parameters.items())
    ni, no = max(len(ins), 1), len(outs)
    lines = [
        f"  // {e}: {engine['name']}",
        f"  logic {e}_due, {e}_fire, {e}_end, {e}_en;",
        f"  logic [{ni - 1}:0] {e}_need, {e}_iv;",
        f"  logic [{no - 1}:0] {e}_make, {e}_or, {e}_push;",
        f"  assign {e}_iv = {_concatenate([f's{k}_valid' for k in ins]) if ins else chr(49)};",
        f"  assign {e}_or = {_concatenate([f's{k}_ready' for k in outs])};",
        f"  assign {e}_en = {_enable(e, outs, style)};",
    ]
    inputs = ""
    if ins:
        data = _concatenate([f"s{k}_data" for k in ins])
        inputs = f".in_valid({e}_iv), .in_data({data}), .need({e}_need), "
    else:
        lines.append(f"  assign {e}_need = 1'b0;")
    out_data = _concatenate([f"s{k}_push_data" for k in outs])
    lines.append(
        f"  {unit.module} #({values}) u_{e} (\n"
        f"    .clk(clk), .rst(rst), .en({e}_en), {inputs}.make({e}_make), .out_ready({e}_or),\n"
        f"    .due({e}_due), .fire({e}_fire), .frame_end({e}_end), .push({e}_push),\n"
        f"    .out_data({out_data}));"
    )
    lines += [f"  assign s{k}_take = {e}_fire & {e}_need[{j}];" for j, k in enumerate(ins)]
    for j, k in enumerate(outs):
        lines.append(f"  assign s{k}_claim = {e}_fire & {e}_make[{j}];")
        lines.append(f"  assign s{k}_push = {e}_push[{j}];")
        lines.append(f"  assign s{k}_en = {e}_en;")
    return lines


def _enable(e: str, outs: Sequence[int], style: Style) -> str:
    """When a pipeline moves."""
    if style is Style.FREE:
        return "1'b1"
    free = "~(" + " | ".join(f"s{k}_stall" for k in outs) + ")"
    return free if style is Style.FLUSH else f"{free} & ~({e}_due & (|({e}_need & ~{e}_iv)))"


def quiet_limit(record: Json) -> int:
    """Cycles without any start after which nothing can ever start again."""
    engines = record["engines"]
    gaps = [g for e in engines for g in (*e["nest"].get("gaps", ()), e["ii"])]
    slots = [e["slots"]["of"] for e in engines if e.get("slots")]
    return int(2 * max(gaps) + max(e["depth"] for e in engines) + max(slots, default=0) + 8)


def bench_verilog(record: Json, name: str, frames: int, *, values: bool = False) -> str:
    """The bench of a stage: writes ``<name>.log``.

    ```text
    s <stream> <cycle>            a token becomes visible       o <stream> <cycle> <hex>   leaves
    e <engine> <cycle>            last start of a frame         w <engine> <port> <cycles> lost
    end <cycle> <1 if deadlocked>
    ```

    Args:
        record: The parsed ``stage.json``.
        name: The stage's module name.
        frames: Frames to run.
        values: Log the data of outputs too.
    """
    wiring = Wiring.of(record)
    engines = record["engines"]
    lines = [
        f"module bench_{name} (input logic clk, output logic done);",
        "  integer log, cycle, quiet;",
        "  logic rst, report, dead, over;",
        "  logic [1:0] start;",
        f"  logic [{len(engines) - 1}:0] finished, fires;",
        f'  initial begin log = $fopen("{name}.log", "w"); start = 0; over = 0; done = 0; end',
        "  assign rst = ~start[1] | over;",
        f"  assign dead = quiet > {quiet_limit(record)};",
        "  assign report = ~over & ((&finished) | dead);",
        *_ports(wiring),
        f"  {name} dut (.clk(clk), .rst(rst){_connections(wiring)});",
    ]
    for number, engine in enumerate(engines):
        e, ni, no = f"dut.e{number}", max(len(engine["inputs"]), 1), len(engine["outputs"])
        lines.append(f"  assign fires[{number}] = {e}_fire;")
        lines.append(
            f"  probe #({ni}, {no}, {frames}, {number}) p{number} (clk, rst, report, log, cycle, "
            f"{e}_due, {e}_fire, {e}_end,\n    {e}_need, {e}_iv, {e}_make, {e}_or, "
            f"finished[{number}]);"
        )
    lines += [
        "  always @(posedge clk) begin",
        "    start <= {start[0], 1'b1};",
        "    if (over & ~done) begin $fclose(log); done <= 1; end",
        "    if (rst) begin cycle <= 0; quiet <= 0; end",
        "    else begin",
        "      cycle <= cycle + 1;",
        "      quiet <= (|fires) ? 0 : quiet + 1;",
        *_log(wiring, values=values),
        "      if (report) begin",
        '        $fwrite(log, "end %0d %0d\\n", cycle, dead & ~(&finished));',
        "        over <= 1;",
        "      end",
        "    end",
        "  end",
        "endmodule",
    ]
    return "\n".join(lines) + "\n"


def _ports(wiring: Wiring) -> list[str]:
    lines = []
    for fifo in wiring.outside("from"):
        k, lanes = wiring.streams[fifo["name"]], fifo["lanes"]
        lines += [
            f"  logic s{k}_take; logic [31:0] s{k}_at; logic [{lanes * BITS - 1}:0] s{k}_data;",
            f"  table_rom #({fifo['tokens']}, {lanes}, {BITS}, {SOURCE_SALT + k}) "
            f"u_s{k} (s{k}_at, s{k}_data);",
            f"  always @(posedge clk) if (rst) s{k}_at <= 0;",
            f"    else if (s{k}_take) s{k}_at <= (s{k}_at == {fifo['tokens'] - 1}) ? 0 : "
            f"s{k}_at + 1;",
        ]
    for fifo in wiring.outside("to"):
        k = wiring.streams[fifo["name"]]
        lines.append(f"  logic s{k}_push; logic [{fifo['lanes'] * BITS - 1}:0] s{k}_push_data;")
    return lines


SOURCE_SALT = 1_000_000
"""Tables of the bench's inputs: ``SALT`` of stream k."""


def _connections(wiring: Wiring) -> str:
    found = ""
    for fifo in wiring.outside("from"):
        k = wiring.streams[fifo["name"]]
        found += f", .s{k}_valid(1'b1), .s{k}_data(s{k}_data), .s{k}_take(s{k}_take)"
    for fifo in wiring.outside("to"):
        k = wiring.streams[fifo["name"]]
        found += f", .s{k}_ready(1'b1), .s{k}_push(s{k}_push), .s{k}_push_data(s{k}_push_data)"
    return found


def _log(wiring: Wiring, *, values: bool) -> list[str]:
    lines = []
    for fifo in wiring.record["fifos"]:
        k = wiring.streams[fifo["name"]]
        if fifo["from"] is not None and fifo["to"] is not None:
            lines.append(
                f'      if (dut.s{k}_push & dut.s{k}_en) $fwrite(log, "s {k} %0d\\n", cycle + 1);'
            )
        elif fifo["from"] is not None and values:
            lines.append(
                f"      if (dut.s{k}_push & dut.s{k}_en) "
                f'$fwrite(log, "o {k} %0d %h\\n", cycle + 1, dut.s{k}_push_data);'
            )
    return lines


def top_verilog(names: Sequence[str]) -> str:
    """One clock for several benches; ends when all have ended."""
    wires = ", ".join(f"done_{n}" for n in names)
    lines = [
        "`ifdef __ICARUS__",
        "module clocked;",
        "  logic clk = 0;",
        "  always #1 clk = ~clk;",
        "  top t (clk);",
        "endmodule",
        "`endif",
        "module top (input logic clk);",
        f"  logic {wires};",
        *[f"  bench_{n} b_{n} (clk, done_{n});" for n in names],
        f"  always @(posedge clk) if ({' & '.join(f'done_{n}' for n in names)}) $finish;",
        "endmodule",
    ]
    return "\n".join(lines) + "\n"


def write_reference(record: Json, folder: Path) -> None:
    """Write the SystemVerilog of one stage with a bench of three frames.

    ``top`` in ``top.sv`` is the bench (``clocked`` for Icarus), ``stage`` the stage; ``main.cpp``
    is the clock of a Verilator model. The log is ``stage.log`` (`bench_verilog`).

    Args:
        record: The parsed ``stage.json``.
        folder: Created; its parent exists.

    Raises:
        BackendError: An engine has no SystemVerilog.
    """
    stage = with_ports(record)
    texts = {
        **library(),
        "stage.sv": stage_verilog(stage, "stage"),
        "bench_stage.sv": bench_verilog(stage, "stage", 3),
        "top.sv": top_verilog(["stage"]),
        "main.cpp": clock_main(),
    }
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
