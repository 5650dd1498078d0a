// Vector-vector unit (depthwise): LANES channels at a time, KP kernel positions per token.
module vvu #(
    parameter int N = 1, CF = 1, STEPS = 1, KP = 1, LANES = 1, BIAS = 0, SALT = 0,
    parameter int BITS = 16, II = 1, DEPTH = 4, BYTES = 0
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     en,
    input  logic [0:0]               in_valid,
    input  logic [KP*LANES*BITS-1:0] in_data,
    output logic [0:0]               need,
    output logic [0:0]               make,
    input  logic [0:0]               out_ready,
    output logic                     due,
    output logic                     fire,
    output logic                     frame_end,
    output logic [0:0]               push,
    output logic [LANES*BITS-1:0]    out_data
);
  logic [31:0] n, c, t;
  logic [KP*LANES*BITS-1:0] word;
  logic [LANES*BITS-1:0] bias, push_data;
  logic last;
  logic [LANES-1:0] pushes;

  assign last = t == STEPS - 1;
  assign need = 1'b1;
  assign make = last;
  assign frame_end = last & (c == CF - 1) & (n == N - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);
  table_rom #(CF * STEPS, KP * LANES, BITS, SALT) u_weight (c * STEPS + t, word);
  table_rom #(CF, LANES, BITS, SALT + 1) u_bias (c, bias);

  always_ff @(posedge clk)
    if (rst) begin
      n <= 0; c <= 0; t <= 0;
    end else if (fire) begin
      t <= last ? 0 : t + 1;
      if (last) c <= (c == CF - 1) ? 0 : c + 1;
      if (last & (c == CF - 1)) n <= (n == N - 1) ? 0 : n + 1;
    end

  // one dot product of KP terms per lane
  genvar l, p;
  generate
    for (l = 0; l < LANES; l = l + 1) begin : g_lane
      logic [KP*BITS-1:0] x, w;
      for (p = 0; p < KP; p = p + 1) begin : g_tap
        assign x[p*BITS+:BITS] = in_data[(p*LANES+l)*BITS+:BITS];
        assign w[p*BITS+:BITS] = word[(p*LANES+l)*BITS+:BITS];
      end
      dot #(1, KP, BITS, 1, DEPTH - 1, BYTES) u_dot (
          clk, rst, en, fire, 1'b1, t == 0, last, 0, x, w,
          (BIAS != 0) ? bias[l*BITS+:BITS] : {BITS{1'b0}}, pushes[l], push_data[l*BITS+:BITS]);
    end
  endgenerate
  assign push = pushes[0];
  assign out_data = push_data;
endmodule
