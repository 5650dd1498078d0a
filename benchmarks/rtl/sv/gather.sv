// Table lookup: an index in, the CF tokens of its row out.
module gather #(
    parameter int N = 1, ENTRIES = 1, CF = 1, LANES = 1, SALT = 0,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  en,
    input  logic [0:0]            in_valid,
    input  logic [BITS-1:0]       in_data,
    output logic [0:0]            need,
    output logic [0:0]            make,
    input  logic [0:0]            out_ready,
    output logic                  due,
    output logic                  fire,
    output logic                  frame_end,
    output logic [0:0]            push,
    output logic [LANES*BITS-1:0] out_data
);
  logic [31:0] n, c, kept, index;
  logic [LANES*BITS-1:0] word;

  assign need = c == 0;
  assign make = 1'b1;
  assign index = need[0] ? in_data % ENTRIES : kept;
  assign frame_end = (c == CF - 1) & (n == N - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);
  table_rom #(ENTRIES * CF, LANES, BITS, SALT) u_table (index * CF + c, word);

  always_ff @(posedge clk)
    if (rst) begin
      n <= 0; c <= 0; kept <= 0;
    end else if (fire) begin
      kept <= index;
      c <= (c == CF - 1) ? 0 : c + 1;
      if (c == CF - 1) n <= (n == N - 1) ? 0 : n + 1;
    end

  pipe #(LANES * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire, word, push[0], out_data);
endmodule
