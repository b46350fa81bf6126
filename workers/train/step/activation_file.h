// ActivationOffload in a file: a thread writes and reads, in the order in which copies were started.
//
// Each key has a place in the file, used again step after step.  A key whose rows become more gets another place, with
// room for a quarter more, and leaves its old one.  Errors are those of parameters/state_file.h.  Thread-compatible.
// (MPMoE offloads to pinned host memory; here a file takes its place.)
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "workers/moe/layer/activation_offload.h"
#include "workers/train/parameters/state_file.h"

namespace switchyard::train {

struct ActivationFileCounters {
  int64_t file_bytes = 0;
  int64_t saved_bytes = 0;
  double wait_seconds = 0;  // of the caller, for copies
};

class ActivationFile : public moe::ActivationOffload {
 public:
  // Errors: open's.
  static absl::StatusOr<std::unique_ptr<ActivationFile>> Create(const OpenStateFileFn& open);
  ~ActivationFile() override;

  void StartSave(const moe::OffloadKey& key, absl::Span<const char> from) override;
  void StartRestore(const moe::OffloadKey& key, absl::Span<char> to) override;
  absl::Status Finish(const moe::OffloadKey& key) override;
  void Drain() override;

  ActivationFileCounters counters() const { return counters_; }

 private:
  struct Place {
    int64_t at = 0, capacity = 0;
    int64_t bytes = 0;  // that were saved last
  };
  struct Copy {
    int64_t at = 0;
    bool saves = false;
    absl::Span<const char> from;  // of a save
    absl::Span<char> to;          // of a restore
    bool done = false;
    absl::Status status;
  };

  explicit ActivationFile(std::unique_ptr<StateFile> file);
  // REQUIRES: no copy of the key is under way.
  void Start(const moe::OffloadKey& key, Copy copy);
  void Run();
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return queue_.empty() && !copies_now_; }
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); }

  const std::unique_ptr<StateFile> file_;
  std::map<moe::OffloadKey, Place> places_;
  ActivationFileCounters counters_;
  absl::Mutex mu_;
  std::map<moe::OffloadKey, std::shared_ptr<Copy>> copies_ ABSL_GUARDED_BY(mu_);  // not finished
  std::deque<std::shared_ptr<Copy>> queue_ ABSL_GUARDED_BY(mu_);
  bool copies_now_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace switchyard::train
