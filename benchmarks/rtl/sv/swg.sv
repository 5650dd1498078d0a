// Sliding-window generator: a memory of the last pixels, a write pointer that follows them, and a
// read pointer that walks the windows. A window token is emitted at its time if the write pointer has
// passed its pixels. Times are those of the two forms of `pipec.backends.fpga.swg`: a line moves one
// position per firing and emits where a window ends; a ring takes LEAD tokens and then TAKES in PERIOD
// firings, and emits EMITS in PERIOD firings from firing START on.
module swg #(
    parameter int BATCH = 1, H = 4, W = 4, CF = 1, LANES = 1, KH = 3, KW = 3, SH = 1, SW = 1,
    parameter int DH = 1, DW = 1, PT = 0, PL = 0, OH = 2, OW = 2, GROUPS = 1, KP = 1,
    parameter int LEAD = 0, START = 0, SLOTS = 1,
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
  localparam int STEPS = KH * KW / KP;
  localparam int GC = CF / GROUPS;
  localparam bit LINE = KP > 1 || KH * KW == 1;
  localparam int WIDEST = (OW - 1) * SW / SH + 1;
  localparam int PITCH = W > WIDEST ? W : WIDEST;
  localparam int CORNER = (EH - 1 - PT) * PITCH + EW - 1 - PL;
  localparam int IDLE = CORNER < 0 ? -CORNER : 0;
  localparam int LAST = CORNER + (OH - 1) * SH * PITCH + (OW - 1) * SW;
  localparam int END = LAST + 1 > H * PITCH ? LAST + 1 : H * PITCH;
  localparam int HELD = LINE ? (EH + SH) * W * CF + KH * KW : SLOTS;
  localparam logic signed [63:0] TAKES = SH * W, EMITS = OW * KH * KW;
  localparam logic signed [63:0] PERIOD = TAKES > EMITS ? TAKES : EMITS;
  localparam logic [BITS-1:0] PAD_WORD = PAD;

  // write side: tokens taken, firings of the image; of a line the position it moves to, the window
  // that ends next and the token of it
  logic signed [31:0] taken, firings, position, column, wc, target, toy, tox, tc;
  // read side: window (oy, ox), its corner (ytop, xleft), group, step, channel token
  logic signed [31:0] oy, ox, ytop, xleft, grp, stp, chn, image, emitted;
  logic all_in, all_out, all_moved;

  logic [LANES*BITS-1:0] mem [0:HELD-1];
  logic [KP-1:0] there;
  logic [KP*LANES*BITS-1:0] window;
  logic emit, accept, move, due_window, last_in, last_out, last_move, over;

  genvar p;
  generate
    for (p = 0; p < KP; p = p + 1) begin : g_pos
      logic [31:0] ky, kx;  // kernel position of lane group p, advanced by KP per step
      logic signed [31:0] y, x, token;
      logic on_map;
      assign y = ytop + ky * DH;
      assign x = xleft + kx * DW;
      assign token = (y * W + x) * CF + grp * GC + chn;
      assign on_map = (y >= 0) & (y < H) & (x >= 0) & (x < W);
      assign there[p] = ~on_map | (token < taken) | (LINE & (token == taken));
      assign window[p*LANES*BITS+:LANES*BITS] = ~on_map ? {LANES{PAD_WORD}}
          : (LINE & (token == taken)) ? in_data : mem[token % HELD];
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

  // a line: while a window is held, it goes on to where the next one ends
  assign due_window = (toy < OH) & (position == target) & (wc == tc);
  assign move = LINE & ~all_moved & (~due_window | (stp == 0));
  // a ring: event k of A in B firings is in firing floor(k * B / A)
  assign emit = (&there) & ~all_out & (LINE
      ? ((due_window & (stp == 0)) | (stp != 0))
      : ((firings >= START) & (emitted * PERIOD < (firings - START + 1) * EMITS)));
  assign accept = LINE
      ? (move & (position >= 0) & (position < H * PITCH) & (column < W))
      : (~all_in & (all_out | (firings < LEAD)
         | ((taken - LEAD) * PERIOD < (firings - LEAD + 1) * TAKES)));
  assign need   = accept;
  assign make   = emit;

  issue #(1, 1) u_issue (
      clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  assign last_in  = taken == H * W * CF - 1;
  assign last_out = (oy == OH - 1) & (ox == OW - 1) & (grp == GROUPS - 1)
      & (stp == STEPS - 1) & (chn == GC - 1);
  assign last_move = (position == END - 1) & (wc == CF - 1);
  assign over = (all_in | (accept & last_in)) & (all_out | (emit & last_out))
      & (~LINE | all_moved | (move & last_move));
  assign frame_end = over & (image == BATCH - 1);

  always_ff @(posedge clk) begin
    if (fire & accept) mem[taken % HELD] <= in_data;
    if (rst | (fire & over)) begin
      taken <= 0; firings <= 0; all_in <= 0;
      position <= -IDLE; column <= (PITCH - IDLE % PITCH) % PITCH; wc <= 0; all_moved <= 0;
      target <= CORNER; toy <= 0; tox <= 0; tc <= 0;
      oy <= 0; ox <= 0; ytop <= -PT; xleft <= -PL; grp <= 0; stp <= 0; chn <= 0; all_out <= 0;
      emitted <= 0;
      image <= (rst | (image == BATCH - 1)) ? 0 : image + 1;
    end else if (fire) begin
      firings <= firings + 1;
      if (accept) begin
        taken <= taken + 1;
        all_in <= last_in;
      end
      if (move) begin
        all_moved <= last_move;
        if (wc != CF - 1) wc <= wc + 1;
        else begin
          wc <= 0;
          position <= position + 1;
          column <= (column == PITCH - 1) ? 0 : column + 1;
        end
        if (due_window) begin
          if (tc != CF - 1) tc <= tc + 1;
          else begin
            tc <= 0;
            if (tox != OW - 1) begin
              tox <= tox + 1;
              target <= target + SW;
            end else begin
              tox <= 0;
              toy <= toy + 1;
              target <= CORNER + (toy + 1) * SH * PITCH;
            end
          end
        end
      end
      if (emit) begin
        emitted <= emitted + 1;
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
