// A table of pseudo-random words: stands for weights and constants, whose values no cycle
// depends on. Element e of word a is a hash of (a, e, SALT).
module table_rom #(
    parameter int WORDS = 1,
    parameter int LANES = 1,
    parameter int BITS  = 16,
    parameter int SALT  = 0
) (
    input  logic [31:0]           addr,
    output logic [LANES*BITS-1:0] word
);
  logic [LANES*BITS-1:0] rom [0:WORDS-1];

  function [BITS-1:0] hashed(input [31:0] a, input [31:0] e);
    logic [31:0] h;
    begin
      h = a * 32'h9E3779B1 + e * 32'h85EBCA77 + SALT * 32'hC2B2AE3D;
      h = h ^ (h >> 15);
      h = h * 32'h2C1B3C6D;
      h = h ^ (h >> 12);
      hashed = h[BITS-1:0];
    end
  endfunction

  integer i, j;
  initial
    for (i = 0; i < WORDS; i = i + 1)
      for (j = 0; j < LANES; j = j + 1) rom[i][j*BITS+:BITS] = hashed(i, j);

  assign word = rom[addr];
endmodule
