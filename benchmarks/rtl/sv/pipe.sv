// A shift register: the stages of a pipeline between issue and the FIFO's write port.
module pipe #(
    parameter int WIDTH  = 1,
    parameter int STAGES = 0
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             en,
    input  logic             valid_in,
    input  logic [WIDTH-1:0] data_in,
    output logic             valid_out,
    output logic [WIDTH-1:0] data_out
);
  generate
    if (STAGES == 0) begin : g_wire
      assign valid_out = valid_in;
      assign data_out  = data_in;
    end else begin : g_regs
      logic [STAGES-1:0]       valid_q;
      logic [STAGES*WIDTH-1:0] data_q;
      assign valid_out = valid_q[STAGES-1];
      assign data_out  = data_q[STAGES*WIDTH-1-:WIDTH];
      always_ff @(posedge clk)
        if (rst) valid_q <= '0;
        else if (en) begin
          valid_q <= (STAGES == 1) ? valid_in : {valid_q, valid_in};
          data_q  <= (STAGES == 1) ? data_in : {data_q, data_in};
        end
    end
  endgenerate
endmodule
