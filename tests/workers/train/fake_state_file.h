// A StateFile in memory that counts calls and fails by a test's hook.  As thread-safe as the hook is.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "workers/train/parameters/state_file.h"

namespace switchyard::train {

class FakeStateFile final : public StateFile {
 public:
  // Called before each call; its error becomes the call's.
  using Hook = std::function<absl::Status(bool writes, int64_t at)>;

  explicit FakeStateFile(int64_t bytes, Hook hook = nullptr)
      : hook_(std::move(hook)), bytes_(static_cast<size_t>(bytes), '\0') {}

  static absl::StatusOr<std::unique_ptr<StateFile>> Open(int64_t bytes) {
    return std::make_unique<FakeStateFile>(bytes);
  }

  absl::Status Read(int64_t at, absl::Span<char> to) const override {
    if (hook_) {
      if (absl::Status status = hook_(false, at); !status.ok()) return status;
    }
    absl::MutexLock lock(&mu_);
    std::memcpy(to.data(), bytes_.data() + at, to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t at, absl::string_view from) override {
    if (hook_) {
      if (absl::Status status = hook_(true, at); !status.ok()) return status;
    }
    absl::MutexLock lock(&mu_);
    bytes_.resize(std::max(bytes_.size(), static_cast<size_t>(at) + from.size()));
    std::memcpy(bytes_.data() + at, from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  const Hook hook_;
  mutable absl::Mutex mu_;
  std::string bytes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::train
