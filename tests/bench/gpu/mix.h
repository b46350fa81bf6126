// splitmix64: a number's random-looking image, the same in moe_peers.py.
#pragma once

#include <cstdint>

namespace switchyard {

inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace switchyard
