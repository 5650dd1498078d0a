// Keeps positions FIRST, FIRST+STRIDE, ... below STOP of an axis of SIZE; INNER tokens each.
module slice #(
    parameter int OUTER = 1, SIZE = 1, FIRST = 0, STOP = 1, STRIDE = 1, INNER = 1, LANES = 1,
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
  logic [31:0] o, j, i, ahead;  // ahead: positions until the next one that is kept
  logic last_i, last_j;

  assign last_i = i == INNER - 1;
  assign last_j = j == SIZE - 1;
  assign need = 1'b1;
  assign make = (ahead == 0) & (j < STOP);
  assign frame_end = last_i & last_j & (o == OUTER - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  always_ff @(posedge clk)
    if (rst) begin
      o <= 0; j <= 0; i <= 0; ahead <= FIRST;
    end else if (fire) begin
      i <= last_i ? 0 : i + 1;
      if (last_i) begin
        j <= last_j ? 0 : j + 1;
        ahead <= last_j ? FIRST : (ahead == 0) ? STRIDE - 1 : ahead - 1;
        if (last_j) o <= (o == OUTER - 1) ? 0 : o + 1;
      end
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire & make[0], in_data, push[0], out_data);
endmodule
