// Product of two activations: per block LOAD tokens of the second operand into a RAM, then VECTORS
// vectors of the first, output stationary as in `mvu`. The second operand is used in the order of
// its arrival (tile by tile), which costs the same cycles as any other order of its axes.
module matmul #(
    parameter int BLOCKS = 1, VECTORS = 1, NF = 1, SF = 1, PE = 1, SIMD = 1, LOAD = 1, B_LANES = 1,
    parameter int BITS = 16, II = 1, DEPTH = 4, BYTES = 0
) (
    input  logic                           clk,
    input  logic                           rst,
    input  logic                           en,
    input  logic [1:0]                     in_valid,
    input  logic [(SIMD+B_LANES)*BITS-1:0] in_data,
    output logic [1:0]                     need,
    output logic [0:0]                     make,
    input  logic [0:0]                     out_ready,
    output logic                           due,
    output logic                           fire,
    output logic                           frame_end,
    output logic [0:0]                     push,
    output logic [PE*BITS-1:0]             out_data
);
  logic [31:0] block, vec, f, s, n;
  logic loading, last_s, last_f, last_v;
  logic [B_LANES*BITS-1:0] ram [0:LOAD-1];
  logic [SIMD*BITS-1:0] kept [0:SF-1];
  logic [SIMD*BITS-1:0] x;
  logic [PE*SIMD*BITS-1:0] word;

  assign last_s = s == SF - 1;
  assign last_f = f == NF - 1;
  assign last_v = vec == VECTORS - 1;
  assign need = loading ? 2'b10 : {1'b0, f == 0};
  assign make = ~loading & last_s;
  assign frame_end = ~loading & last_s & last_f & last_v & (block == BLOCKS - 1);
  assign x = (f == 0) ? in_data[SIMD*BITS-1:0] : kept[s];

  issue #(2, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  genvar e;
  generate
    for (e = 0; e < PE * SIMD; e = e + 1) begin : g_word
      logic [31:0] at;
      assign at = ((f * SF + s) * PE * SIMD + e) % (LOAD * B_LANES);
      assign word[e*BITS+:BITS] = ram[at/B_LANES][(at%B_LANES)*BITS+:BITS];
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) begin
      block <= 0; vec <= 0; f <= 0; s <= 0; n <= 0; loading <= 1;
    end else if (fire) begin
      if (loading) begin
        ram[n] <= in_data[SIMD*BITS+:B_LANES*BITS];
        n <= (n == LOAD - 1) ? 0 : n + 1;
        if (n == LOAD - 1) loading <= 0;
      end else begin
        if (f == 0) kept[s] <= in_data[SIMD*BITS-1:0];
        s <= last_s ? 0 : s + 1;
        if (last_s) f <= last_f ? 0 : f + 1;
        if (last_s & last_f) vec <= last_v ? 0 : vec + 1;
        if (last_s & last_f & last_v) begin
          loading <= 1;
          block <= (block == BLOCKS - 1) ? 0 : block + 1;
        end
      end
    end

  dot #(PE, SIMD, BITS, 1, DEPTH - 1, BYTES) u_dot (
      clk, rst, en, fire, ~loading, ~loading & (s == 0), make[0], 0, x, word,
      {(PE*BITS){1'b0}}, push[0], out_data);
endmodule
