// A value that one thread sets and a test waits for, with a long deadline.
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

inline constexpr absl::Duration kPatience = absl::Seconds(60);

template <class Value>
class Watched {
 public:
  explicit Watched(Value value = Value()) : value_(std::move(value)) {}

  Value Get() const {
    absl::MutexLock lock(&mu_);
    return value_;
  }
  void Set(Value value) {
    Change([&](Value* now) { *now = std::move(value); });
  }
  void Change(const std::function<void(Value* value)>& change) {
    absl::MutexLock lock(&mu_);
    change(&value_);
  }
  // Returns false if no such value comes in time.
  bool Await(const std::function<bool(const Value& value)>& wanted) const {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return wanted(value_); };
    return mu_.AwaitWithTimeout(absl::Condition(&reached), kPatience);
  }

 private:
  mutable absl::Mutex mu_;
  Value value_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
