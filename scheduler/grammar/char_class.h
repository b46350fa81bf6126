// A set of Unicode characters as sorted ranges, without surrogates, which UTF-8 cannot hold.  A value;
// thread-compatible.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace switchyard::grammar {

inline constexpr uint32_t kLastChar = 0x10ffff;

class CharClass {
 public:
  struct Range {
    uint32_t low = 0;
    uint32_t high = 0;
    bool operator==(const Range& other) const = default;
  };

  CharClass() = default;
  CharClass(std::initializer_list<Range> ranges) {
    for (const Range& range : ranges) Add(range.low, range.high);
  }
  static CharClass Any() { return {{0, kLastChar}}; }

  // Adds low … high; surrogates and what is past the last character are left out.
  void Add(uint32_t low, uint32_t high);
  void Add(const CharClass& other);
  CharClass Complement() const;
  CharClass Without(const CharClass& other) const;
  bool Contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }  // sorted, none touches the next

 private:
  std::vector<Range> ranges_;
};

// UTF-8 of a character.  REQUIRES: no surrogate, at most kLastChar.  Returns how many bytes were written.
int EncodeUtf8(uint32_t c, uint8_t bytes[4]);

}  // namespace switchyard::grammar
