// Stand-in for the vendor's header of this name, used only where no vendor tool is: the fields
// of an AXI4-Stream beat that the engines use.
#ifndef PIPEC_CSIM_AP_AXI_SDATA_H
#define PIPEC_CSIM_AP_AXI_SDATA_H

#include <cstddef>

namespace hls {

template <typename T, std::size_t WUSER, std::size_t WID, std::size_t WDEST>
struct axis {
  T data;
  long long keep;
  long long strb;
  bool last;
};

}  // namespace hls

#endif
