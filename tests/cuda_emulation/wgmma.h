// The state of warpgroup products under way in a CUDA thread of the emulation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace cuda_emulation {

inline constexpr int kMaxWgmmaTokens = 192;

class WgmmaThread {
 public:
  // Sums that are written to d when their wait ends; d is NaN before.
  struct Sums {
    float* d;
    int count;  // of floats
    int group;  // the last that adds to them
    std::array<float, kMaxWgmmaTokens / 2> value;
  };
  // Operands that the tensor cores may still read; one thread of a warp keeps them for all.
  struct Operands {
    uint64_t a, b;
    int tokens, group;
    bool rows;  // a is in registers, and rows of b are k
    uint64_t hash;
  };

  void Reset() { *this = WgmmaThread(); }

  std::vector<Sums> sums;
  std::vector<Operands> operands;
  int open_group = 0;
  bool fenced = false;           // since the last wait
  bool copies_unfenced = false;  // bytes of cp.async landed, and FenceProxyAsync() did not follow yet
};

}  // namespace cuda_emulation
