// Width converter: elements queue in a shift register; a token is read while too few are there for
// the next output token, and that is written as soon as they are. C_IN and C_OUT are the elements of
// a row on either side; the last token of a row is partly padding.
module dwc #(
    parameter int ROWS_IN = 1, C_IN = 1, L_IN = 1, ROWS_OUT = 1, C_OUT = 1, L_OUT = 1, REPEAT = 1,
    parameter int BITS = 16, II = 1, DEPTH = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic                  en,
    input  logic [0:0]            in_valid,
    input  logic [L_IN*BITS-1:0]  in_data,
    output logic [0:0]            need,
    output logic [0:0]            make,
    input  logic [0:0]            out_ready,
    output logic                  due,
    output logic                  fire,
    output logic                  frame_end,
    output logic [0:0]            push,
    output logic [L_OUT*BITS-1:0] out_data
);
  localparam int ROOM = (L_IN + L_OUT) * BITS;

  logic [31:0] left_in, left_out;  // elements of the current row yet to come, on either side
  logic [31:0] rows, have, arriving, wanted, there;
  logic [ROOM-1:0] queue, joined, kept;
  logic [L_OUT*BITS-1:0] token;

  assign arriving = (left_in < L_IN) ? left_in : L_IN;
  assign wanted   = (left_out < L_OUT) ? left_out : L_OUT;
  assign need     = have < wanted;
  assign there    = have + (need[0] ? arriving : 0);
  assign make     = there >= wanted;
  assign kept     = {ROOM{1'b1}} >> (ROOM - have * BITS);
  assign joined   = ((have == 0) ? '0 : queue & kept)
                  | (need[0] ? (ROOM'(in_data) << (have * BITS)) : '0);
  assign token    = joined[L_OUT*BITS-1:0] & ({(L_OUT*BITS){1'b1}} >> ((L_OUT - wanted) * BITS));
  assign frame_end = make[0] & (left_out <= L_OUT) & (rows == ROWS_OUT * REPEAT - 1);

  issue #(1, 1) u_issue (clk, rst, en, 1'b1, II, need, in_valid, make, out_ready, due, fire);

  always_ff @(posedge clk)
    if (rst) begin
      left_in <= C_IN; left_out <= C_OUT; rows <= 0; have <= 0;
    end else if (fire) begin
      if (need[0]) left_in <= (left_in <= L_IN) ? C_IN : left_in - L_IN;
      if (make[0]) begin
        left_out <= (left_out <= L_OUT) ? C_OUT : left_out - L_OUT;
        if (left_out <= L_OUT) rows <= (rows == ROWS_OUT * REPEAT - 1) ? 0 : rows + 1;
      end
      have  <= there - (make[0] ? wanted : 0);
      queue <= make[0] ? joined >> (wanted * BITS) : joined;
    end

  pipe #(L_OUT * BITS, DEPTH - 1) u_pipe (clk, rst, en, fire & make[0], token, push[0], out_data);
endmodule
