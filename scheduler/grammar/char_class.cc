#include "scheduler/grammar/char_class.h"

#include <algorithm>

namespace switchyard::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

}  // namespace

void CharClass::Add(uint32_t low, uint32_t high) {
  high = std::min(high, kLastChar);
  if (low > high) return;
  if (low <= kLastSurrogate && high >= kFirstSurrogate) {
    if (low < kFirstSurrogate) Add(low, kFirstSurrogate - 1);
    if (high > kLastSurrogate) Add(kLastSurrogate + 1, high);
    return;
  }
  auto at = std::lower_bound(ranges_.begin(), ranges_.end(), low,
                             [](const Range& range, uint32_t value) { return range.high + 1 < value; });
  Range merged{low, high};
  const auto first = at;
  for (; at != ranges_.end() && at->low <= high + 1; ++at) {
    merged.low = std::min(merged.low, at->low);
    merged.high = std::max(merged.high, at->high);
  }
  ranges_.insert(ranges_.erase(first, at), merged);
}

void CharClass::Add(const CharClass& other) {
  for (const Range& range : other.ranges_) Add(range.low, range.high);
}

CharClass CharClass::Complement() const {
  CharClass out;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.low > next) out.Add(next, range.low - 1);
    next = range.high + 1;
  }
  if (next <= kLastChar) out.Add(next, kLastChar);
  return out;
}

CharClass CharClass::Without(const CharClass& other) const {
  CharClass out = Complement();
  out.Add(other);
  return out.Complement();
}

bool CharClass::Contains(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const Range& r) { return c >= r.low && c <= r.high; });
}

int EncodeUtf8(uint32_t c, uint8_t bytes[4]) {
  const auto tail = [c](int shift) { return static_cast<uint8_t>(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) {
    bytes[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    bytes[0] = static_cast<uint8_t>(0xc0 | (c >> 6));
    bytes[1] = tail(0);
    return 2;
  }
  if (c < 0x10000) {
    bytes[0] = static_cast<uint8_t>(0xe0 | (c >> 12));
    bytes[1] = tail(6);
    bytes[2] = tail(0);
    return 3;
  }
  bytes[0] = static_cast<uint8_t>(0xf0 | (c >> 18));
  bytes[1] = tail(12);
  bytes[2] = tail(6);
  bytes[3] = tail(0);
  return 4;
}

}  // namespace switchyard::grammar
