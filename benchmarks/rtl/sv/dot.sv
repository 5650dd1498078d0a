// Dot products of PE rows with SIMD lanes: multiplier registers, a registered adder tree, an
// accumulator. A command (`go`) enters with its operands; LEVELS + 2 cycles later its accumulators
// hold the sum, and if it is to be written it leaves, after as many more registers as make LATENCY.
// BYTES: of operands the lower 8 bits count, and two rows share a multiplier.
module dot #(
    parameter int PE = 1, SIMD = 1, BITS = 16, ACCS = 1, LATENCY = 4, BYTES = 0
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic                    en,
    input  logic                    go,      // an iteration starts
    input  logic                    mac,     // it multiplies
    input  logic                    first,   // the accumulator starts anew
    input  logic                    write,   // the accumulator is written out
    input  logic [31:0]             index,   // which accumulator
    input  logic [SIMD*BITS-1:0]    x,
    input  logic [PE*SIMD*BITS-1:0] w,       // [SIMD][PE]
    input  logic [PE*BITS-1:0]      bias,
    output logic                    push,
    output logic [PE*BITS-1:0]      y
);
  localparam int LEVELS = $clog2(SIMD);
  localparam int LEAVES = 1 << LEVELS;
  localparam int INNER = LEVELS + 2;  // registers up to and with the accumulator

  // Command bits travel beside the operands.
  logic go_q;
  logic [34+PE*BITS:0] command, command_q;
  assign command = {index, mac, first, write, bias};
  pipe #(35 + PE * BITS, LEVELS + 1) u_command (clk, rst, en, go, command, go_q, command_q);

  logic [31:0] index_q;
  logic mac_q, first_q, write_q;
  logic [PE*BITS-1:0] bias_q;
  assign {index_q, mac_q, first_q, write_q, bias_q} = command_q;

  logic [BITS-1:0] acc [0:ACCS*PE-1];
  logic written;
  logic [PE*BITS-1:0] result;
  logic [BITS-1:0] product [0:PE*SIMD-1];
  genvar m, l, n;
  generate
    for (n = 0; n < SIMD; n = n + 1) begin : g_column
      for (m = 0; m < PE; m = m + 1) begin : g_product
        localparam int AT = (n * PE + m) * BITS;
        if (BYTES == 0) begin : g_whole
          assign product[n*PE+m] = x[n*BITS+:BITS] * w[AT+:BITS];
        end else if (m % 2 == 0 && m + 1 < PE) begin : g_pair
          logic signed [8:0] w0, w1, x0;
          logic signed [17:0] low, high;
          assign w0 = $signed(w[AT+:8]);
          assign w1 = $signed(w[AT+BITS+:8]);
          assign x0 = $signed(x[n*BITS+:8]);
          pair u_pair (w0, w1, x0, low, high);
          assign product[n*PE+m]   = low;
          assign product[n*PE+m+1] = high;
        end else if (m % 2 == 0) begin : g_lone
          assign product[n*PE+m] = $signed(w[AT+:8]) * $signed(x[n*BITS+:8]);
        end
      end
    end
    for (m = 0; m < PE; m = m + 1) begin : g_row
      // node n of level l adds nodes 2n and 2n+1 of level l-1; level 0 holds the products
      for (l = 0; l <= LEVELS; l = l + 1) begin : g_level
        logic [BITS-1:0] node [0:(LEAVES>>l)-1];
        for (n = 0; n < (LEAVES >> l); n = n + 1) begin : g_node
          if (l == 0) begin : g_leaf
            if (n < SIMD) begin : g_used
              always_ff @(posedge clk)
                if (en) node[n] <= product[n*PE+m];
            end else begin : g_pad
              always_ff @(posedge clk) node[n] <= '0;
            end
          end else begin : g_add
            always_ff @(posedge clk)
              if (en) node[n] <= g_level[l-1].node[2*n] + g_level[l-1].node[2*n+1];
          end
        end
      end
      logic [BITS-1:0] base, sum;
      assign base = first_q ? '0 : acc[index_q*PE+m];
      assign sum  = mac_q ? base + g_level[LEVELS].node[0] : base;
      always_ff @(posedge clk)
        if (en) begin
          if (go_q & mac_q) acc[index_q*PE+m] <= sum;
          result[m*BITS+:BITS] <= sum + bias_q[m*BITS+:BITS];
        end
    end
  endgenerate
  always_ff @(posedge clk)
    if (rst) written <= 0;
    else if (en) written <= go_q & write_q;

  pipe #(PE * BITS, LATENCY - INNER) u_rest (clk, rst, en, written, result, push, y);

  initial
    if (LATENCY < INNER) begin
      $display("dot: a latency of %0d is too short for %0d lanes", LATENCY, SIMD);
      $finish;
    end
endmodule
