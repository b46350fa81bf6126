// What an attempt says that it is doing: to the log and, through its listener, to the server.  Rank 0's; the others are
// silent.  Thread-compatible: while Run's thread waits for those that load, one of them may call.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "workers/train/job/train_listener.h"

namespace switchyard::train {

class JobNotes {
 public:
  // listener: borrowed; null: of a rank that is silent.
  JobNotes(std::string job_id, absl::Duration interval, TrainListener* listener);

  // At once: something else begins.
  void Stage(const std::string& text);
  // Of what takes long: unless the last note is younger than the interval.
  void Note(const std::string& text);
  bool due() const;
  // Bytes that are read of one thing, and a note of all of them so far.
  void StartCount() { bytes_ = 0; }
  void Count(absl::string_view what, int64_t bytes);

 private:
  const std::string job_id_;
  const absl::Duration interval_;
  TrainListener* const listener_;
  absl::Time last_ = absl::InfinitePast();
  int64_t bytes_ = 0;
};

}  // namespace switchyard::train
