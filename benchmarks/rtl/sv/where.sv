// Comparison and choice: a OP b ? x : y, element by element. OP 0 >, 1 >=, 2 <, 3 <=, 4 ==, 5 !=.
//
// Operand k of a, b, x, y is input PORTS[k] or, where there is no such input, the number NUMBERS[k].
// Lanes without a channel are 0.
module where #(
    parameter int ROWS = 1, CF = 1, C = 1, LANES = 1, NI = 1, OP = 0,
    parameter logic [4*32-1:0] PORTS = '0, NUMBERS = '0,
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
  logic [31:0] row, token;
  logic [LANES*BITS-1:0] result;

  assign need = '1;
  assign make = 1'b1;
  assign frame_end = (row == ROWS - 1) & (token == CF - 1);

  issue #(NI, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  genvar l, k;
  generate
    for (l = 0; l < LANES; l = l + 1) begin : g_lane
      logic [4*BITS-1:0] operands;
      logic signed [BITS-1:0] a, b;
      logic chosen;
      for (k = 0; k < 4; k = k + 1) begin : g_operand
        if (PORTS[k*32+:32] < NI)
          assign operands[k*BITS+:BITS] = in_data[(PORTS[k*32+:32]*LANES+l)*BITS+:BITS];
        else assign operands[k*BITS+:BITS] = NUMBERS[k*32+:BITS];
      end
      assign a = operands[0+:BITS];
      assign b = operands[BITS+:BITS];
      assign chosen = (OP == 0) ? a > b : (OP == 1) ? a >= b : (OP == 2) ? a < b
                    : (OP == 3) ? a <= b : (OP == 4) ? a == b : a != b;
      assign result[l*BITS+:BITS] = (token * LANES + l >= C) ? {BITS{1'b0}}
                                  : chosen ? operands[2*BITS+:BITS] : operands[3*BITS+:BITS];
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) begin
      row   <= 0;
      token <= 0;
    end else if (fire) begin
      token <= (token == CF - 1) ? 0 : token + 1;
      if (token == CF - 1) row <= (row == ROWS - 1) ? 0 : row + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire, result, push[0], out_data);
endmodule
