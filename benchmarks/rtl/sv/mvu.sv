// Matrix-vector unit. ORDER 0: output stationary, a vector of SF tokens is kept while the NF tiles
// of rows pass. ORDER 1: input stationary, a token meets all NF tiles, NF accumulators. ORDER 2:
// BLOCK vectors are read, every streamed word serves all of them, then all results are written.
// Weights lie in a table, or arrive by the second input.
module mvu #(
    parameter int N = 1, GROUPS = 1, NF = 1, SF = 1, PE = 1, SIMD = 1, ORDER = 0, BLOCK = 1,
    parameter int STREAMED = 0, BIAS = 0, SALT = 0,
    parameter int BITS = 16, II = 1, DEPTH = 4, BYTES = 0,
    parameter int NI = (STREAMED != 0) ? 2 : 1
) (
    input  logic               clk,
    input  logic               rst,
    input  logic               en,
    input  logic [NI-1:0]      in_valid,
    input  logic [(SIMD+((STREAMED!=0)?PE*SIMD:0))*BITS-1:0] in_data,
    output logic [NI-1:0]      need,
    output logic [0:0]         make,
    input  logic [0:0]         out_ready,
    output logic               due,
    output logic               fire,
    output logic               frame_end,
    output logic [0:0]         push,
    output logic [PE*BITS-1:0] out_data
);
  localparam int ROM_WORDS = (STREAMED != 0) ? 1 : GROUPS * NF * SF;
  localparam int READ = 0, COMPUTE = 1, WRITE = 2;

  logic [31:0] vec, grp, f, s, v;
  logic [1:0]  phase;  // ORDER 2 only; the others are always computing
  logic [SIMD*BITS-1:0] kept [0:BLOCK*SF-1];
  logic [SIMD*BITS-1:0] x;
  logic [PE*SIMD*BITS-1:0] word, rom_word, held;
  logic [PE*BITS-1:0] bias_word;
  logic last_s, last_f, last_v, read_x, read_w, computing, writing, wrap;

  assign last_s = s == SF - 1;
  assign last_f = f == NF - 1;
  assign last_v = v == BLOCK - 1;

  assign computing = (ORDER != 2) | (phase == COMPUTE);
  assign read_x = (ORDER == 2) ? phase == READ : f == 0;
  assign read_w = (STREAMED != 0) & computing & ((ORDER != 2) | (v == 0));
  assign writing = (ORDER == 2) ? phase == WRITE : last_s;
  assign need[0] = read_x;
  generate
    if (STREAMED != 0) begin : g_words
      assign need[1] = read_w;
      assign word = read_w ? in_data[SIMD*BITS+:PE*SIMD*BITS] : held;
    end else begin : g_rom
      assign word = rom_word;
    end
  endgenerate
  assign make = writing;
  assign x = (ORDER == 2) ? kept[v*SF+s] : (read_x ? in_data[SIMD*BITS-1:0]
                                                   : kept[(ORDER == 1) ? 0 : s]);

  issue #(NI, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  table_rom #(ROM_WORDS, PE * SIMD, BITS, SALT) u_weight ((grp * NF + f) * SF + s, rom_word);
  table_rom #(GROUPS * NF, PE, BITS, SALT + 1) u_bias (grp * NF + f, bias_word);

  // innermost loop over: s (order 0), f (order 1), v (order 2)
  assign wrap = (ORDER == 2) ? (phase == WRITE) & last_v & last_f : last_s & last_f;
  assign frame_end = wrap & (grp == GROUPS - 1) & (vec == N / BLOCK - 1);

  always_ff @(posedge clk)
    if (rst) begin
      vec <= 0; grp <= 0; f <= 0; s <= 0; v <= 0; phase <= READ;
    end else if (fire) begin
      if (read_x) kept[(ORDER == 2) ? v * SF + s : (ORDER == 1) ? 0 : s] <= in_data[SIMD*BITS-1:0];
      if (read_w) held <= word;
      if (ORDER == 0) begin
        s <= last_s ? 0 : s + 1;
        if (last_s) f <= last_f ? 0 : f + 1;
      end else if (ORDER == 1) begin
        f <= last_f ? 0 : f + 1;
        if (last_f) s <= last_s ? 0 : s + 1;
      end else if (phase == READ) begin
        s <= last_s ? 0 : s + 1;
        if (last_s) v <= last_v ? 0 : v + 1;
        if (last_s & last_v) phase <= COMPUTE;
      end else if (phase == COMPUTE) begin
        v <= last_v ? 0 : v + 1;
        if (last_v) s <= last_s ? 0 : s + 1;
        if (last_v & last_s) f <= last_f ? 0 : f + 1;
        if (last_v & last_s & last_f) phase <= WRITE;
      end else begin
        f <= last_f ? 0 : f + 1;
        if (last_f) v <= last_v ? 0 : v + 1;
        if (last_f & last_v) phase <= READ;
      end
      if (wrap) begin
        grp <= (grp == GROUPS - 1) ? 0 : grp + 1;
        if (grp == GROUPS - 1) vec <= (vec == N / BLOCK - 1) ? 0 : vec + 1;
      end
    end

  dot #(PE, SIMD, BITS, (ORDER == 0) ? 1 : BLOCK * NF, DEPTH - 1, BYTES) u_dot (
      clk, rst, en, fire, computing, computing & (s == 0), writing,
      (ORDER == 0) ? 0 : (ORDER == 1) ? f : v * NF + f,
      x, word, (BIAS != 0) ? bias_word : '0, push[0], out_data);
endmodule
