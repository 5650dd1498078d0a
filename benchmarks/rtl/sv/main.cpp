// Clock for the Verilator model.
#include <memory>

#include "Vtop.h"
#include "verilated.h"

int main() {
  const auto context = std::make_unique<VerilatedContext>();
  const auto top = std::make_unique<Vtop>(context.get());
  top->clk = 0;
  while (!context->gotFinish()) {
    top->eval();
    top->clk = !top->clk;
  }
  top->final();
  return 0;
}
