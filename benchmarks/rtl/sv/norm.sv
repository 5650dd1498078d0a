// Row unit: the row is read into a buffer with its largest element, passes over it follow, and the
// last pass writes. The pipeline drains for GAPS[k] cycles before pass k. The arithmetic stands
// for softmax and normalisation: x minus the row's largest element.
module norm #(
    parameter int ROWS = 1, CF = 1, LANES = 1, PASSES = 3,
    parameter logic [PASSES*32-1:0] GAPS = '0,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  en,
    input  logic [0:0]            in_valid,
    input  logic [LANES*BITS-1:0] in_data,
    output logic [0:0]            need,
    output logic [0:0]            make,
    input  logic [0:0]            out_ready,
    output logic                  due,
    output logic                  fire,
    output logic                  frame_end,
    output logic [0:0]            push,
    output logic [LANES*BITS-1:0] out_data
);
  logic [31:0] row, pass, c, gap;
  logic [LANES*BITS-1:0] kept [0:CF-1];
  logic [LANES*BITS-1:0] result, here;
  logic signed [BITS-1:0] most;
  logic last, last_pass;

  assign last = c == CF - 1;
  assign last_pass = pass == PASSES - 1;
  assign need = pass == 0;
  assign make = last_pass;
  assign frame_end = last & last_pass & (row == ROWS - 1);
  assign gap = GAPS[(last_pass ? 0 : pass + 1)*32+:32];

  issue #(1, 1) u_issue (
      clk, rst, en, 1'b1, last ? gap : II,
      need, in_valid, make, out_ready, due, fire);

  assign here = kept[c];
  genvar l;
  generate
    for (l = 0; l < LANES; l = l + 1) begin : g_lane
      logic signed [BITS-1:0] x, top;  // top: largest of lanes 0..l and of the tokens before
      assign x = in_data[l*BITS+:BITS];
      if (l == 0) assign top = ((c == 0) | (x > most)) ? x : most;
      else assign top = (x > g_lane[l-1].top) ? x : g_lane[l-1].top;
      assign result[l*BITS+:BITS] = here[l*BITS+:BITS] - most;
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) begin
      row <= 0; pass <= 0; c <= 0;
    end else if (fire) begin
      if (need[0]) begin
        kept[c] <= in_data;
        most <= g_lane[LANES-1].top;
      end
      c <= last ? 0 : c + 1;
      if (last) pass <= last_pass ? 0 : pass + 1;
      if (last & last_pass) row <= (row == ROWS - 1) ? 0 : row + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire & make[0], result, push[0], out_data);
endmodule
