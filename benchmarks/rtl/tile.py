"""A tiled engine on a DDR port: bursts in, compute, store, over ping-pong buffers.

```text
          empty (BANKS at reset)              space (2 at reset)
        ┌───────────────◄───────────┐      ┌────────◄────────┐
     [request] ─ask─► [bus] ─full─► [array] ──── done ────► [store]
        └──────◄────────┘
          credit (OUTSTANDING at reset)
```

One token is a burst, a buffer, or a tile of results; feedback streams hold what is free. All
times are maxima of sums, so the interval is the largest cycle ratio of the net:

```text
per tile = max(load, compute, store, (load+compute+latency)/banks, (load+latency)/outstanding)
```
"""

from dataclasses import dataclass
from pathlib import Path

from pipec.backends.fpga.runs import Loop, Run, Runs
from pipec.backends.fpga.simulator.native import Process, Trace, simulate

RESULTS = 2
"""Buffers of results."""


@dataclass(frozen=True)
class Tile:
    """A tiled engine.

    Attributes:
        load: Beats of a burst; ``compute`` and ``store`` cycles of a tile. At least 1 each.
        latency: Cycles from a request to its first beat, at least 1.
        banks: Input buffers; ``outstanding`` bursts under way, at most.
        tiles: Tiles per frame.
    """

    load: int
    compute: int
    store: int
    latency: int
    banks: int = 2
    outstanding: int = 2
    tiles: int = 12

    @property
    def bound(self) -> float:
        """Cycles per tile in steady state.

        Example:
            >>> Tile(64, 80, 16, 40).bound  # two buffers do not hide the latency
            92.0
        """
        return max(
            self.load,
            self.compute,
            self.store,
            (self.load + self.compute + self.latency) / self.banks,
            (self.load + self.latency) / self.outstanding,
        )

    def processes(self) -> list[Process]:
        """The net above."""
        return [
            Process("request", self._each((Run(1, 1, 3, 1),)), ("empty", "credit"), ("ask",),
                    self.latency),
            Process("bus", self._each(_hold(self.load, 1, 3)), ("ask",), ("full", "credit")),
            Process("array", self._each(_hold(self.compute, 3, 3)), ("full", "space"),
                    ("empty", "done")),
            Process("store", self._each(_hold(self.store, 1, 1)), ("done",), ("space",)),
        ]  # fmt: skip

    def _each(self, body: Runs) -> Runs:
        return (Loop(self.tiles, body),)

    def simulate(self, frames: int) -> Trace:
        """Cycles of some frames; nothing in it can deadlock."""
        initial = {"empty": self.banks, "credit": self.outstanding, "space": RESULTS}
        room = max(self.banks, self.outstanding, RESULTS)
        depths = dict.fromkeys(("empty", "credit", "space", "ask", "full", "done"), room)
        return simulate(self.processes(), depths, frames, initial=initial)


def _hold(cycles: int, reads: int, writes: int) -> Runs:
    """A resource held for some cycles: taken in the first, given back in the last."""
    if cycles == 1:
        return (Run(1, 1, reads, writes),)
    return (Run(1, 1, reads), Run(1, cycles - 1, 0, writes))


SOURCE = Path(__file__).with_name("tile.sv")
"""The engine as hardware."""


def tile_bench_verilog(tile: Tile, name: str, frames: int) -> str:
    """The bench of a tiled engine; its log has the ``e`` lines of engine 0, the store unit."""
    return f"""\
module bench_{name} (input logic clk, output logic done);
  integer log, cycle, stores;
  logic rst, stored;
  logic [1:0] start;
  initial begin log = $fopen("{name}.log", "w"); start = 0; done = 0; end
  assign rst = ~start[1] | done;
  tile #(.LOAD({tile.load}), .COMPUTE({tile.compute}), .STORE({tile.store}),
    .LATENCY({tile.latency}), .BANKS({tile.banks}), .OUTSTANDING({tile.outstanding})) dut (
    .clk(clk), .rst(rst), .asked(), .loaded(), .computed(), .stored(stored));
  always @(posedge clk) begin
    start <= {{start[0], 1'b1}};
    if (rst) begin cycle <= 0; stores <= 0; end
    else begin
      cycle <= cycle + 1;
      if (stored) begin
        stores <= stores + 1;
        if ((stores + 1) % {tile.tiles} == 0) $fwrite(log, "e 0 %0d\\n", cycle);
        if (stores + 1 == {tile.tiles * frames}) begin
          $fwrite(log, "end %0d 0\\n", cycle);
          $fclose(log);
          done <= 1;
        end
      end
    end
  end
endmodule
"""
