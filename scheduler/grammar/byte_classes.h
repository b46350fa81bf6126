// Classes of bytes that no edge of a grammar tells apart, so that an automaton keeps one successor for all of a class.
//
// A value; thread-safe once made.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "scheduler/grammar/grammar.h"

namespace switchyard::grammar {

class ByteClasses {
 public:
  explicit ByteClasses(const Grammar& grammar);

  int32_t size() const { return static_cast<int32_t>(first_.size()); }
  int32_t Of(uint8_t byte) const { return class_of_[byte]; }
  // The least byte of a class.
  uint8_t First(int32_t byte_class) const { return first_[byte_class]; }
  // The ASCII bytes of a class, as a set of bits.
  const std::array<uint64_t, 2>& Ascii(int32_t byte_class) const { return ascii_[byte_class]; }

 private:
  std::array<uint8_t, 256> class_of_ = {};
  std::vector<uint8_t> first_;  // rising
  std::vector<std::array<uint64_t, 2>> ascii_;
};

}  // namespace switchyard::grammar
