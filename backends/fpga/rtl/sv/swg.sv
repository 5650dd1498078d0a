// Sliding-window generator: a ring of image rows, a write pointer that follows the pixels, and a
// read pointer that walks the windows. A window token is emitted when the write pointer has passed
// its pixels; a pixel is taken while the ring has room and the pace (a Bresenham accumulator: SH
// rows in for one row of windows out) asks for it, or while nothing can be emitted.
module swg #(
    parameter int BATCH = 1, H = 4, W = 4, CF = 1, LANES = 1, KH = 3, KW = 3, SH = 1, SW = 1,
    parameter int DH = 1, DW = 1, PT = 0, PL = 0, OH = 2, OW = 2, GROUPS = 1, KP = 1,
    parameter int PAD = 0,
    parameter int BITS = 16, II = 1, DEPTH = 3
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     en,
    input  logic [0:0]               in_valid,
    input  logic [LANES*BITS-1:0]    in_data,
    output logic [0:0]               need,
    output logic [0:0]               make,
    input  logic [0:0]               out_ready,
    output logic                     due,
    output logic                     fire,
    output logic                     frame_end,
    output logic [0:0]               push,
    output logic [KP*LANES*BITS-1:0] out_data
);
  localparam int EH = (KH - 1) * DH + 1;
  localparam int EW = (KW - 1) * DW + 1;
  localparam int ROWS = EH + SH;
  localparam int STEPS = KH * KW / KP;
  localparam int GC = CF / GROUPS;
  localparam int TOP = (EH - 1 - PT < H - 1) ? EH - 1 - PT : H - 1;
  localparam int LEFT = (EW - PL < W) ? EW - PL : W;
  localparam int FILL = (TOP * W + LEFT) * CF;
  localparam int OUT_ROW = OW * STEPS * CF;
  localparam int IN_ROWS = SH * W * CF;
  localparam logic [BITS-1:0] PAD_WORD = PAD;

  // write side: where the next pixel token goes
  logic signed [31:0] wy, wx, wc, wslot;
  // read side: window (oy, ox), its corner (ytop, xleft), group, step, channel token
  logic signed [31:0] oy, ox, ytop, xleft, grp, stp, chn, image;
  logic signed [63:0] pace;
  logic all_in, all_out;

  logic [LANES*BITS-1:0] mem [0:ROWS*W*CF-1];
  logic [KP-1:0] there;
  logic [KP*LANES*BITS-1:0] window;
  logic emit, accept, last_in, last_out, over;

  genvar p;
  generate
    for (p = 0; p < KP; p = p + 1) begin : g_pos
      logic [31:0] ky, kx;  // kernel position of lane group p, advanced by KP per step
      logic signed [31:0] y, x, c;
      logic on_map;
      assign y = ytop + ky * DH;
      assign x = xleft + kx * DW;
      assign c = grp * GC + chn;
      assign on_map = (y >= 0) & (y < H) & (x >= 0) & (x < W);
      assign there[p] = ~on_map | (y < wy) | ((y == wy) & ((x < wx) | ((x == wx) & (c < wc))));
      assign window[p*LANES*BITS+:LANES*BITS] =
          on_map ? mem[(((y % ROWS) * W) + x) * CF + c] : {LANES{PAD_WORD}};
      always_ff @(posedge clk)
        if (rst) begin
          ky <= p / KW;
          kx <= p % KW;
        end else if (fire & emit & (chn == GC - 1)) begin
          if (stp == STEPS - 1) begin
            ky <= p / KW;
            kx <= p % KW;
          end else if (kx + KP % KW >= KW) begin
            ky <= ky + KP / KW + 1;
            kx <= kx + KP % KW - KW;
          end else begin
            ky <= ky + KP / KW;
            kx <= kx + KP % KW;
          end
        end
    end
  endgenerate

  assign emit   = ~all_out & (&there);
  assign accept = ~all_in
      & (all_out | ((wy - ((ytop < 0) ? 0 : ytop) < ROWS) & (~emit | (pace < 0))));
  assign need   = accept;
  assign make   = emit;

  issue #(1, 1) u_issue (
      clk, rst, en, emit | accept, II, need, in_valid, make, out_ready, due, fire);

  assign last_in  = (wy == H - 1) & (wx == W - 1) & (wc == CF - 1);
  assign last_out = (oy == OH - 1) & (ox == OW - 1) & (grp == GROUPS - 1)
      & (stp == STEPS - 1) & (chn == GC - 1);
  assign over = (all_in | (accept & last_in)) & (all_out | (emit & last_out));
  assign frame_end = over & (image == BATCH - 1);

  always_ff @(posedge clk) begin
    if (fire & accept) mem[(wslot * W + wx) * CF + wc] <= in_data;
    if (rst | (fire & over)) begin
      wy <= 0; wx <= 0; wc <= 0; wslot <= 0; all_in <= 0;
      oy <= 0; ox <= 0; ytop <= -PT; xleft <= -PL; grp <= 0; stp <= 0; chn <= 0; all_out <= 0;
      pace <= -64'(FILL) * 64'(OUT_ROW);
      image <= (rst | (image == BATCH - 1)) ? 0 : image + 1;
    end else if (fire) begin
      pace <= pace + (accept ? 64'(OUT_ROW) : 64'sd0) - (emit ? 64'(IN_ROWS) : 64'sd0);
      if (accept) begin
        all_in <= last_in;
        if (wc != CF - 1) wc <= wc + 1;
        else begin
          wc <= 0;
          if (wx != W - 1) wx <= wx + 1;
          else begin
            wx <= 0;
            wy <= wy + 1;
            wslot <= (wslot == ROWS - 1) ? 0 : wslot + 1;
          end
        end
      end
      if (emit) begin
        all_out <= last_out;
        if (chn != GC - 1) chn <= chn + 1;
        else begin
          chn <= 0;
          if (stp != STEPS - 1) stp <= stp + 1;
          else begin
            stp <= 0;
            if (grp != GROUPS - 1) grp <= grp + 1;
            else begin
              grp <= 0;
              if (ox != OW - 1) begin
                ox <= ox + 1;
                xleft <= xleft + SW;
              end else begin
                ox <= 0;
                xleft <= -PL;
                oy <= oy + 1;
                ytop <= ytop + SH;
              end
            end
          end
        end
      end
    end
  end

  pipe #(KP * LANES * BITS, DEPTH - 1) u_pipe (
      clk, rst, en, fire & emit, window, push[0], out_data);
endmodule
