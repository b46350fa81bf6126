// Warp primitives: every lane named in the mask must call them, with the same mask.  What CUDA leaves undefined (a
// shuffle from a lane outside the mask) gives bytes of 0xFF here, a NaN.
#pragma once

#include <cstring>
#include <type_traits>

#include "cuda_emulation/block.h"
#include "cuda_emulation/qualifiers.h"

namespace cuda_emulation {

template <class Value>
struct ShuffleLane {
  Value value;
  int source;  // the lane with the value to return
};

template <class Value>
void ShuffleLanes(void* const (&lanes)[32], uint32_t mask) {
  using Lane = ShuffleLane<Value>;
  Value in[32];
  std::memset(static_cast<void*>(in), 0xFF, sizeof in);
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) in[i] = static_cast<Lane*>(lanes[i])->value;
  }
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) {
      Lane* lane = static_cast<Lane*>(lanes[i]);
      lane->value = in[lane->source & 31];
    }
  }
}

template <class Value>
Value Shuffle(const char* name, unsigned mask, Value value, int source) {
  static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= 8);
  ShuffleLane<Value> lane{value, source};
  WarpTogether(name, mask, &ShuffleLanes<Value>, &lane);
  return lane.value;
}

struct VoteLane {
  unsigned long long value;
  unsigned result;
};
unsigned Ballot(unsigned mask, bool predicate);
unsigned MatchAny(unsigned mask, unsigned long long value);

template <class Value>
struct ReduceLane {
  Value value;
};

template <class Value, class Function>
void ReduceLanes(void* const (&lanes)[32], uint32_t mask) {
  Value sum{};
  bool first = true;
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    Value value = static_cast<ReduceLane<Value>*>(lanes[i])->value;
    sum = first ? value : Function()(sum, value);
    first = false;
  }
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) static_cast<ReduceLane<Value>*>(lanes[i])->value = sum;
  }
}

template <class Function, class Value>
Value Reduce(const char* name, unsigned mask, Value value) {
  ReduceLane<Value> lane{value};
  WarpTogether(name, mask, &ReduceLanes<Value, Function>, &lane);
  return lane.value;
}

struct Add {
  template <class Value>
  Value operator()(Value a, Value b) const {
    return static_cast<Value>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
  }
};
struct Min {
  template <class Value>
  Value operator()(Value a, Value b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class Value>
  Value operator()(Value a, Value b) const {
    return a < b ? b : a;
  }
};
struct BitAnd {
  unsigned operator()(unsigned a, unsigned b) const { return a & b; }
};
struct BitOr {
  unsigned operator()(unsigned a, unsigned b) const { return a | b; }
};
struct BitXor {
  unsigned operator()(unsigned a, unsigned b) const { return a ^ b; }
};

void SyncLanes(void* const (&lanes)[32], uint32_t mask);

}  // namespace cuda_emulation

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  cuda_emulation::WarpTogether("__syncwarp", mask, &cuda_emulation::SyncLanes, nullptr);
}

// Segments of `width` lanes, a power of two.
template <class Value>
inline Value __shfl_sync(unsigned mask, Value value, int source, int width = warpSize) {
  const int lane = static_cast<int>(cuda_emulation::LaneIndex());
  return cuda_emulation::Shuffle("__shfl_sync", mask, value, (lane & ~(width - 1)) + (source & (width - 1)));
}
template <class Value>
inline Value __shfl_up_sync(unsigned mask, Value value, unsigned delta, int width = warpSize) {
  const int lane = static_cast<int>(cuda_emulation::LaneIndex());
  const int source = (lane & (width - 1)) - static_cast<int>(delta);
  return cuda_emulation::Shuffle("__shfl_up_sync", mask, value, source < 0 ? lane : lane - static_cast<int>(delta));
}
template <class Value>
inline Value __shfl_down_sync(unsigned mask, Value value, unsigned delta, int width = warpSize) {
  const int lane = static_cast<int>(cuda_emulation::LaneIndex());
  const int source = (lane & (width - 1)) + static_cast<int>(delta);
  return cuda_emulation::Shuffle("__shfl_down_sync", mask, value,
                                 source >= width ? lane : lane + static_cast<int>(delta));
}
template <class Value>
inline Value __shfl_xor_sync(unsigned mask, Value value, int lane_mask, int width = warpSize) {
  const int lane = static_cast<int>(cuda_emulation::LaneIndex());
  const int source = lane ^ lane_mask;
  // As the hardware: a lane of an earlier segment may be read, one of a later segment may not.
  return cuda_emulation::Shuffle("__shfl_xor_sync", mask, value, source > (lane | (width - 1)) ? lane : source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_emulation::Ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return cuda_emulation::Ballot(mask, predicate != 0) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return cuda_emulation::Ballot(mask, predicate == 0) == 0; }
inline unsigned __activemask() { return cuda_emulation::ActiveMask(); }
template <class Value>
inline unsigned __match_any_sync(unsigned mask, Value value) {
  unsigned long long bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return cuda_emulation::MatchAny(mask, bits);
}
template <class Value>
inline Value __reduce_add_sync(unsigned mask, Value value) {
  return cuda_emulation::Reduce<cuda_emulation::Add>("__reduce_add_sync", mask, value);
}
template <class Value>
inline Value __reduce_min_sync(unsigned mask, Value value) {
  return cuda_emulation::Reduce<cuda_emulation::Min>("__reduce_min_sync", mask, value);
}
template <class Value>
inline Value __reduce_max_sync(unsigned mask, Value value) {
  return cuda_emulation::Reduce<cuda_emulation::Max>("__reduce_max_sync", mask, value);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return cuda_emulation::Reduce<cuda_emulation::BitAnd>("__reduce_and_sync", mask, value);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return cuda_emulation::Reduce<cuda_emulation::BitOr>("__reduce_or_sync", mask, value);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return cuda_emulation::Reduce<cuda_emulation::BitXor>("__reduce_xor_sync", mask, value);
}
