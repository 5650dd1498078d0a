// Reads a table of WORDS in order, REPEAT times a frame: constants, and weights from DDR. DEPTH is
// then the memory's latency; requests in flight are bounded by the stream's credits. With SLOTS > 0
// the memory port is shared: a request may start only in a cycle c with bit c mod SLOTS of MINE set.
module fetch #(
    parameter int WORDS = 1, REPEAT = 1, LANES = 1, SALT = 0, SLOTS = 0,
    parameter logic [63:0] MINE = '1,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  en,
    output logic [0:0]            make,
    input  logic [0:0]            out_ready,
    output logic                  due,
    output logic                  fire,
    output logic                  frame_end,
    output logic [0:0]            push,
    output logic [LANES*BITS-1:0] out_data
);
  logic [31:0] r, i, turn;
  logic [LANES*BITS-1:0] word;
  logic unused_valid;

  assign make = 1'b1;
  assign unused_valid = 1'b1;
  assign frame_end = (i == WORDS - 1) & (r == REPEAT - 1);

  issue #(1, 1) u_issue (
      clk, rst, en, (SLOTS == 0) | MINE[turn[5:0]], (SLOTS == 0) ? II : 1,
      1'b0, unused_valid, make, out_ready, due, fire);
  table_rom #(WORDS, LANES, BITS, SALT) u_table (i, word);

  always_ff @(posedge clk)
    if (rst) begin
      r <= 0; i <= 0; turn <= 0;
    end else begin
      turn <= (turn + 1 >= SLOTS) ? 0 : turn + 1;
      if (fire) begin
        i <= (i == WORDS - 1) ? 0 : i + 1;
        if (i == WORDS - 1) r <= (r == REPEAT - 1) ? 0 : r + 1;
      end
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire, word, push[0], out_data);
endmodule
