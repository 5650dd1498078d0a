// Simulation only. Counts an engine's frames and the cycles that it loses: a cycle in which it is
// due and does not start is charged to the first port, inputs before outputs, that is not ready.
module probe #(
    parameter int NI = 1, NO = 1, FRAMES = 1, ENGINE = 0
) (
    input logic          clk,
    input logic          rst,
    input logic          report,
    input logic [31:0]   log,
    input logic [31:0]   cycle,
    input logic          due,
    input logic          fire,
    input logic          frame_end,
    input logic [NI-1:0] need,
    input logic [NI-1:0] in_valid,
    input logic [NO-1:0] make,
    input logic [NO-1:0] out_ready,
    output logic         finished
);
  integer frames, k;
  integer waits [0:NI+NO-1];
  logic charged;

  assign finished = frames >= FRAMES;
  always @(posedge clk)
    if (rst) begin
      frames <= 0;
      for (k = 0; k < NI + NO; k = k + 1) waits[k] = 0;
    end else begin
      if (fire & frame_end & ~finished) begin
        frames <= frames + 1;
        $fwrite(log, "e %0d %0d\n", ENGINE, cycle);
      end
      charged = 0;
      if (due & ~fire & ~finished)
        for (k = 0; k < NI + NO; k = k + 1)
          if (~charged & ((k < NI) ? need[k] & ~in_valid[k] : make[k-NI] & ~out_ready[k-NI])) begin
            waits[k] = waits[k] + 1;
            charged = 1;
          end
      if (report)
        for (k = 0; k < NI + NO; k = k + 1)
          $fwrite(log, "w %0d %0d %0d\n", ENGINE, k, waits[k]);
    end
endmodule
