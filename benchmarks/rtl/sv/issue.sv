// When an engine may start its next iteration: the interval since the last one is over, every
// token that the iteration reads is there, and every stream that it writes has a free slot.
//
// `gap` is the number of cycles from this start to the next, at least; `en` freezes a rigid
// pipeline; `slot` is low while a shared port belongs to somebody else.
module issue #(
    parameter int NI = 1,
    parameter int NO = 1
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          en,
    input  logic          slot,
    input  logic [31:0]   gap,
    input  logic [NI-1:0] need,
    input  logic [NI-1:0] in_valid,
    input  logic [NO-1:0] make,
    input  logic [NO-1:0] out_ready,
    output logic          due,
    output logic          fire
);
  logic [31:0] wait_q;

  assign due  = (wait_q == 0) & slot;
  assign fire = en & due & ~(|(need & ~in_valid)) & ~(|(make & ~out_ready));

  always_ff @(posedge clk)
    if (rst) wait_q <= 0;
    else if (en) begin
      if (fire) wait_q <= gap - 1;
      else if (wait_q != 0) wait_q <= wait_q - 1;
    end
endmodule
