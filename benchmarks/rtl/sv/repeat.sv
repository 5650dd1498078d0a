// Repeats blocks of INNER tokens TIMES times; the first pass reads and writes together.
module repeat_unit #(
    parameter int OUTER = 1, INNER = 1, TIMES = 1, LANES = 1,
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
  logic [LANES*BITS-1:0] kept [0:INNER-1];
  logic [31:0] o, t, i;

  assign need = t == 0;
  assign make = 1'b1;
  assign frame_end = (i == INNER - 1) & (t == TIMES - 1) & (o == OUTER - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  always_ff @(posedge clk)
    if (rst) begin
      o <= 0; t <= 0; i <= 0;
    end else if (fire) begin
      if (need[0]) kept[i] <= in_data;
      i <= (i == INNER - 1) ? 0 : i + 1;
      if (i == INNER - 1) t <= (t == TIMES - 1) ? 0 : t + 1;
      if ((i == INNER - 1) & (t == TIMES - 1)) o <= (o == OUTER - 1) ? 0 : o + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (
      clk, rst, en, fire, need[0] ? in_data : kept[i], push[0], out_data);
endmodule
