// Reduction over a window: N results of CF tokens from WINDOW inputs each. OP 0 sum, 1 max, 2 min.
module reduce #(
    parameter int N = 1, WINDOW = 1, CF = 1, KP = 1, LANES = 1, OP = 0,
    parameter int BITS = 16, II = 1, DEPTH = 4
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
  logic [31:0] n, j, c;
  logic [LANES*BITS-1:0] acc [0:CF-1];
  logic [LANES*BITS-1:0] next;
  logic last;

  assign last = j == WINDOW - 1;
  assign need = 1'b1;
  assign make = last;
  assign frame_end = last & (c == CF - 1) & (n == N - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  genvar l, p;
  generate
    for (l = 0; l < LANES; l = l + 1) begin : g_lane
      logic signed [BITS-1:0] part [0:KP];
      assign part[0] = acc[c][l*BITS+:BITS];
      for (p = 0; p < KP; p = p + 1) begin : g_tap
        logic signed [BITS-1:0] x;
        assign x = in_data[(p*LANES+l)*BITS+:BITS];
        if (OP == 0) assign part[p+1] = ((p == 0) & (j == 0)) ? x : part[p] + x;
        else if (OP == 1)
          assign part[p+1] = (((p == 0) & (j == 0)) | (x > part[p])) ? x : part[p];
        else assign part[p+1] = (((p == 0) & (j == 0)) | (x < part[p])) ? x : part[p];
      end
      assign next[l*BITS+:BITS] = part[KP];
    end
  endgenerate

  always_ff @(posedge clk)
    if (rst) begin
      n <= 0; j <= 0; c <= 0;
    end else if (fire) begin
      acc[c] <= next;
      c <= (c == CF - 1) ? 0 : c + 1;
      if (c == CF - 1) j <= last ? 0 : j + 1;
      if ((c == CF - 1) & last) n <= (n == N - 1) ? 0 : n + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire & make[0], next, push[0], out_data);
endmodule
