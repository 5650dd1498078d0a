// Elementwise unit: one or two inputs, read together. OP 0 first input, 1 add, 2 subtract,
// 3 multiply, 4 max, 5 min; RELU clips at zero behind it.
module map #(
    parameter int TOKENS = 1, LANES = 1, NI = 1, OP = 0, RELU = 0,
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
  logic [31:0] n;
  logic [LANES*BITS-1:0] result;

  assign need = '1;
  assign make = 1'b1;
  assign frame_end = n == TOKENS - 1;

  issue #(NI, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  genvar l;
  generate
    for (l = 0; l < LANES; l = l + 1) begin : g_lane
      logic signed [BITS-1:0] x, y, r;
      assign x = in_data[l*BITS+:BITS];
      assign y = in_data[((NI-1)*LANES+l)*BITS+:BITS];
      assign r = (OP == 1) ? x + y : (OP == 2) ? x - y : (OP == 3) ? x * y
               : (OP == 4) ? ((x > y) ? x : y) : (OP == 5) ? ((x < y) ? x : y) : x;
      assign result[l*BITS+:BITS] = ((RELU != 0) & (r < 0)) ? {BITS{1'b0}} : r;
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) n <= 0;
    else if (fire) n <= frame_end ? 0 : n + 1;

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire, result, push[0], out_data);
endmodule
