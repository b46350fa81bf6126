// Looks for markers in bytes that come one at a time.
//
// A byte that may belong to a marker is held until that is decided.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::text {

class MarkerMatcher {
 public:
  enum class Step : uint8_t {
    kHeld,   // what is held begins a marker
    kFound,  // what is held is the marker `found()`
    kNone,   // what is held begins no marker: the caller takes it, and presents all but its first byte again
  };

  // `markers` are borrowed, not empty, and none begins another.  What is held does not change.
  void Watch(absl::Span<const absl::string_view> markers) { markers_ = markers; }

  Step Take(char byte) {
    held_.push_back(byte);
    bool begins = false;
    for (size_t i = 0; i < markers_.size(); ++i) {
      if (markers_[i].substr(0, held_.size()) != held_) continue;
      if (markers_[i].size() == held_.size()) {
        found_ = i;
        return Step::kFound;
      }
      begins = true;
    }
    return begins ? Step::kHeld : Step::kNone;
  }

  // Which of the markers was found.
  size_t found() const { return found_; }
  const std::string& held() const { return held_; }
  std::string TakeHeld() { return std::exchange(held_, ""); }

 private:
  absl::Span<const absl::string_view> markers_;
  std::string held_;
  size_t found_ = 0;
};

}  // namespace switchyard::text
