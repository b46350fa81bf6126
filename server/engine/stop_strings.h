// The stop strings of a request, as tables by which each is found in a text that comes in pieces.
//
// Constant, so the request's choices share it; what each has read of its text is a number for each string, which the
// caller keeps.  Reading a byte takes a few steps for each string, however alike strings and text are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard::server {

class StopStrings {
 public:
  // REQUIRES: none is empty.
  explicit StopStrings(std::vector<std::string> stops);

  size_t size() const { return stops_.size(); }
  bool empty() const { return stops_.empty(); }
  const std::string& stop(size_t i) const { return stops_[i]; }

  // Reads the next bytes of a text up to the end of the first occurrence of stop i, and returns how many these are;
  // npos: it does not end in them.  *matched: length of the longest prefix of the stop that ends the text so far; 0
  // before the text.  REQUIRES: *matched < stop(i).size().
  size_t Find(size_t i, absl::string_view text, size_t* matched) const;

 private:
  std::vector<std::string> stops_;
  // Of each stop's prefix of length k + 1 the longest proper prefix that ends it, too (Knuth, Morris and Pratt).
  std::vector<std::vector<uint32_t>> borders_;  // [stops][bytes]
};

}  // namespace switchyard::server
