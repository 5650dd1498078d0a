// Simulation build that counts the busy cycles of every task and prints them.
#include <cstdio>

inline long &busy() {
  static long cycles = 0;
  return cycles;
}

#define FIRE(II, D) (busy() += (II))
#define GAP(CYCLES) (busy() += (CYCLES)-1)
#define TASK(...)   \
  busy() = 0;       \
  __VA_ARGS__;      \
  std::fprintf(stderr, "%ld %s\n", busy(), #__VA_ARGS__)
#define DATAFLOW_END (void)0
