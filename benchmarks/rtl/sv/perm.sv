// Reorder buffer of one bank: a block of ELEMENTS is read in order, then written with its axes
// permuted: output element i lies at the sum over axes k of (i / OUT_STRIDE[k] % OUT_SIZE[k]) *
// IN_STRIDE[k] of the block.
module perm #(
    parameter int BLOCKS = 1, ELEMENTS = 1, RANK = 1,
    parameter logic [RANK*32-1:0] OUT_SIZE = '0,
    parameter logic [RANK*32-1:0] OUT_STRIDE = '0,
    parameter logic [RANK*32-1:0] IN_STRIDE = '0,
    parameter int C_IN = 1, L_IN = 1, C_OUT = 1, L_OUT = 1,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  en,
    input  logic [0:0]            in_valid,
    input  logic [L_IN*BITS-1:0]  in_data,
    output logic [0:0]            need,
    output logic [0:0]            make,
    input  logic [0:0]            out_ready,
    output logic                  due,
    output logic                  fire,
    output logic                  frame_end,
    output logic [0:0]            push,
    output logic [L_OUT*BITS-1:0] out_data
);
  logic [BITS-1:0] mem [0:ELEMENTS-1];
  logic [31:0] block, at, left, valid_in, valid_out;  // at: element, left: of its row
  logic writing, over;
  logic [L_OUT*BITS-1:0] token;
  integer i;

  assign valid_in  = (left < L_IN) ? left : L_IN;
  assign valid_out = (left < L_OUT) ? left : L_OUT;
  assign need = ~writing;
  assign make = writing;
  assign over = at + (writing ? valid_out : valid_in) >= ELEMENTS;
  assign frame_end = writing & over & (block == BLOCKS - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  function [31:0] source(input [31:0] e);
    integer k;
    begin
      source = 0;
      for (k = 0; k < RANK; k = k + 1)
        source = source
            + ((e / OUT_STRIDE[k*32+:32]) % OUT_SIZE[k*32+:32]) * IN_STRIDE[k*32+:32];
    end
  endfunction

  genvar l;
  generate
    for (l = 0; l < L_OUT; l = l + 1) begin : g_lane
      assign token[l*BITS+:BITS] = (l < valid_out) ? mem[source(at+l)] : '0;
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) begin
      block <= 0; at <= 0; left <= C_IN; writing <= 0;
    end else if (fire) begin
      if (~writing)
        for (i = 0; i < L_IN; i = i + 1)
          if (i < valid_in) mem[at+i] <= in_data[i*BITS+:BITS];
      if (over) begin
        at <= 0;
        writing <= ~writing;
        left <= writing ? C_IN : C_OUT;
        if (writing) block <= (block == BLOCKS - 1) ? 0 : block + 1;
      end else begin
        at <= at + (writing ? valid_out : valid_in);
        left <= writing ? ((left <= L_OUT) ? C_OUT : left - L_OUT)
                        : ((left <= L_IN) ? C_IN : left - L_IN);
      end
    end

  pipe #(L_OUT * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire & writing, token, push[0], out_data);
endmodule
