#include "scheduler/grammar/byte_classes.h"

#include <bitset>
#include <map>

namespace switchyard::grammar {

ByteClasses::ByteClasses(const Grammar& grammar) {
  std::vector<std::bitset<256>> ends(256);  // of the ranges that begin at a byte
  for (StateId s = 0; s < grammar.num_states(); ++s) {
    for (const Grammar::ByteEdge& edge : grammar.state(s).bytes) ends[edge.low].set(edge.high);
  }
  // Two bytes are alike if the same ranges have them.
  std::vector<std::vector<uint16_t>> ranges(256);
  for (int low = 0; low < 256; ++low) {
    for (int high = low; high < 256; ++high) {
      if (!ends[low][high]) continue;
      for (int byte = low; byte <= high; ++byte) ranges[byte].push_back(static_cast<uint16_t>(low * 256 + high));
    }
  }
  std::map<std::vector<uint16_t>, uint8_t> known;
  for (int byte = 0; byte < 256; ++byte) {
    const auto [it, is_new] = known.try_emplace(ranges[byte], static_cast<uint8_t>(first_.size()));
    if (is_new) first_.push_back(static_cast<uint8_t>(byte));
    class_of_[byte] = it->second;
    ascii_.resize(first_.size());
    if (byte < 0x80) ascii_[it->second][byte / 64] |= uint64_t{1} << (byte % 64);
  }
}

}  // namespace switchyard::grammar
