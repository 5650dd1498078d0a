// Two products with a common operand from one 27x18 multiplier, as `multiply_pair` in dot.h.
module pair (
    input  logic signed [8:0]  w0,
    input  logic signed [8:0]  w1,
    input  logic signed [8:0]  x,
    output logic signed [17:0] low,   // w0 * x
    output logic signed [17:0] high   // w1 * x
);
  logic signed [26:0] upper, both;
  logic signed [17:0] common;
  logic signed [44:0] product;
  assign upper = w1;
  assign both = (upper <<< 18) + w0;
  assign common = x;
  assign product = both * common;
  assign low = product[17:0];
  assign high = product[35:18] + product[17];
endmodule
