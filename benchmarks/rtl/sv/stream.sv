// A stream: first-word fall-through FIFO behind its writer's pipeline.
//
// STYLE 0, free-running pipeline: the writer holds credits, DEPTH + LATENCY of them. It spends one
// when it starts an iteration that writes, and has it back in the cycle after the reader's pop, so
// the pipeline never has to stop: whatever is in flight owns its slot.
// STYLE 1 and 2, rigid pipeline: DEPTH slots; a token that leaves the last stage while the
// registered `full` is high freezes the writer (`stall`).
module stream #(
    parameter int WIDTH   = 8,
    parameter int DEPTH   = 2,
    parameter int LATENCY = 1,
    parameter int INITIAL = 0,
    parameter int STYLE   = 0
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             claim,
    output logic             ready,
    input  logic             push,
    output logic             stall,
    input  logic             en,
    input  logic [WIDTH-1:0] push_data,
    output logic             valid,
    output logic [WIDTH-1:0] data,
    input  logic             take
);
  localparam int SLOTS = (STYLE == 0) ? DEPTH + LATENCY : DEPTH;

  logic [WIDTH-1:0] mem [0:SLOTS-1];
  logic [31:0] head, tail, count, credit;
  logic full, put;
  integer i;

  assign valid = count != 0;
  assign data  = mem[head];
  assign full  = count == SLOTS;
  assign put   = push & en;
  assign stall = (STYLE != 0) & (LATENCY > 1) & push & full;
  assign ready = (STYLE == 0) ? credit != 0 : (LATENCY > 1) | ~full;

  always_ff @(posedge clk)
    if (rst) begin
      head   <= 0;
      tail   <= INITIAL % SLOTS;
      count  <= INITIAL;
      credit <= SLOTS - INITIAL;
      for (i = 0; i < INITIAL; i = i + 1) mem[i] <= '0;
    end else begin
      if (put) begin
        mem[tail] <= push_data;
        tail <= (tail == SLOTS - 1) ? 0 : tail + 1;
      end
      if (take) head <= (head == SLOTS - 1) ? 0 : head + 1;
      count  <= count + (put ? 1 : 0) - (take ? 1 : 0);
      credit <= credit + (take ? 1 : 0) - (claim ? 1 : 0);
    end
endmodule
