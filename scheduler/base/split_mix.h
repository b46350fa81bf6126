// SplitMix64 (Steele, Lea and Flood, 2014): a number's random-looking image, the same in every process and on every
// machine, which neither std::hash nor absl::Hash promises.  Not for secrets.
#pragma once

#include <cstdint>

namespace switchyard {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// Called with a seed plus i * kSplitMixStep it is the generator's i-th number.
inline uint64_t SplitMix(uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace switchyard
