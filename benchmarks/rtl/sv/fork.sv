// Copies every token to NO outputs in one iteration.
module fork_unit #(
    parameter int TOKENS = 1, LANES = 1, NO = 2,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     en,
    input  logic [0:0]               in_valid,
    input  logic [LANES*BITS-1:0]    in_data,
    output logic [0:0]               need,
    output logic [NO-1:0]            make,
    input  logic [NO-1:0]            out_ready,
    output logic                     due,
    output logic                     fire,
    output logic                     frame_end,
    output logic [NO-1:0]            push,
    output logic [NO*LANES*BITS-1:0] out_data
);
  logic [31:0] n;
  logic pushed;
  logic [LANES*BITS-1:0] word;

  assign need = 1'b1;
  assign make = '1;
  assign frame_end = n == TOKENS - 1;
  assign push = {NO{pushed}};
  assign out_data = {NO{word}};

  issue #(1, NO) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  always_ff @(posedge clk)
    if (rst) n <= 0;
    else if (fire) n <= frame_end ? 0 : n + 1;

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire, in_data, pushed, word);
endmodule
