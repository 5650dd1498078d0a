// Joins NI inputs: SIZES[k] tokens of input k in turn, OUTER times.
module concat #(
    parameter int OUTER = 1, LANES = 1, NI = 2,
    parameter logic [NI*32-1:0] SIZES = '0,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     en,
    input  logic [NI-1:0]            in_valid,
    input  logic [NI*LANES*BITS-1:0] in_data,
    output logic [NI-1:0]            need,
    output logic [0:0]               make,
    input  logic [0:0]               out_ready,
    output logic                     due,
    output logic                     fire,
    output logic                     frame_end,
    output logic [0:0]               push,
    output logic [LANES*BITS-1:0]    out_data
);
  logic [31:0] o, k, j;
  logic last;

  assign last = j == SIZES[k*32+:32] - 1;
  assign need = NI'(1) << k;
  assign make = 1'b1;
  assign frame_end = last & (k == NI - 1) & (o == OUTER - 1);

  issue #(NI, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  always_ff @(posedge clk)
    if (rst) begin
      o <= 0; k <= 0; j <= 0;
    end else if (fire) begin
      j <= last ? 0 : j + 1;
      if (last) k <= (k == NI - 1) ? 0 : k + 1;
      if (last & (k == NI - 1)) o <= (o == OUTER - 1) ? 0 : o + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (
      clk, rst, en, fire, in_data[k*LANES*BITS+:LANES*BITS], push[0], out_data);
endmodule
