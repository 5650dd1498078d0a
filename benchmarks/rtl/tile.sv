// A tiled engine on a DDR port: bursts of LOAD beats into one of BANKS buffers, COMPUTE cycles on a
// full buffer, STORE beats of results out of one of two. A burst is asked for when a buffer is free
// and fewer than OUTSTANDING are under way; its first beat comes LATENCY cycles later, and the bus
// carries one burst after the other. Control only: no data are moved.
module tile #(
    parameter int LOAD = 8, COMPUTE = 8, STORE = 8, LATENCY = 4, BANKS = 2, OUTSTANDING = 2
) (
    input  logic clk,
    input  logic rst,
    output logic asked,     // a burst is asked for
    output logic loaded,    // its last beat arrives
    output logic computed,  // last cycle of a tile's computation
    output logic stored     // last beat of its results
);
  // buffers and bursts
  logic [31:0] banks_free, banks_full, results_free, results_full, flying, arrived;
  logic arrive;

  assign asked = (banks_free != 0) & (flying < OUTSTANDING);
  pipe #(1, LATENCY - 1) u_memory (clk, rst, 1'b1, asked, 1'b0, arrive, );

  // bus, array and store unit: each is idle (0) or has so many cycles left, this one counted
  logic [31:0] bus_q, array_q, store_q, bus, array, store;
  assign bus   = (bus_q != 0) ? bus_q : (arrived != 0) ? LOAD : 0;
  assign array = (array_q != 0) ? array_q
               : ((banks_full != 0) & (results_free != 0)) ? COMPUTE : 0;
  assign store = (store_q != 0) ? store_q : (results_full != 0) ? STORE : 0;
  assign loaded   = bus == 1;
  assign computed = array == 1;
  assign stored   = store == 1;

  logic bus_starts, array_starts, store_starts;
  assign bus_starts   = (bus_q == 0) & (bus != 0);
  assign array_starts = (array_q == 0) & (array != 0);
  assign store_starts = (store_q == 0) & (store != 0);

  always_ff @(posedge clk)
    if (rst) begin
      banks_free <= BANKS; banks_full <= 0; results_free <= 2; results_full <= 0;
      flying <= 0; arrived <= 0; bus_q <= 0; array_q <= 0; store_q <= 0;
    end else begin
      bus_q   <= (bus == 0) ? 0 : bus - 1;
      array_q <= (array == 0) ? 0 : array - 1;
      store_q <= (store == 0) ? 0 : store - 1;
      flying  <= flying + (asked ? 1 : 0) - (loaded ? 1 : 0);
      arrived <= arrived + (arrive ? 1 : 0) - (bus_starts ? 1 : 0);
      banks_free   <= banks_free + (computed ? 1 : 0) - (asked ? 1 : 0);
      banks_full   <= banks_full + (loaded ? 1 : 0) - (array_starts ? 1 : 0);
      results_free <= results_free + (stored ? 1 : 0) - (array_starts ? 1 : 0);
      results_full <= results_full + (computed ? 1 : 0) - (store_starts ? 1 : 0);
    end
endmodule
