// Rates: how often something may happen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace switchyard::server {

// Allows `rate` a second, and `burst` at once.
class RateLimit {
 public:
  RateLimit(double rate, double burst, absl::Time now) : rate_(rate), burst_(burst), left_(burst), at_(now) {}
  // Takes one, if one is left.
  bool Take(absl::Time now) {
    Refill(now);
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }
  // Takes `count` now or in advance; returns how long to wait for them, at most `most`: beyond, takes none.
  std::optional<absl::Duration> Reserve(absl::Time now, absl::Duration most, double count = 1) {
    Refill(now);
    const absl::Duration wait = absl::Seconds(std::max(0.0, count - left_) / rate_);
    if (wait > most) return std::nullopt;
    left_ -= count;
    return wait;
  }
  void Give(double count) { left_ = std::min(left_ + count, burst_); }
  // When `count` will be left, at the earliest.
  absl::Time When(double count) const {
    return at_ + absl::Seconds(std::max(0.0, std::min(count, burst_) - left_) / rate_);
  }
  bool IsFull(absl::Time now) {
    Refill(now);
    return left_ >= burst_;
  }
  int64_t burst() const { return static_cast<int64_t>(burst_); }

 private:
  void Refill(absl::Time now) {
    if (now <= at_) return;
    Give(rate_ * absl::ToDoubleSeconds(now - at_));
    at_ = now;
  }
  double rate_, burst_, left_;
  absl::Time at_;
};

// One that several connections share.  Thread-safe.
class SharedRate {
 public:
  SharedRate(double rate, double burst, absl::Time now) : limit_(rate, burst, now) {}
  bool Take(absl::Time now) {
    absl::MutexLock lock(&mu_);
    return limit_.Take(now);
  }
  std::optional<absl::Duration> Reserve(absl::Time now, absl::Duration most, double count = 1) {
    absl::MutexLock lock(&mu_);
    return limit_.Reserve(now, most, count);
  }
  absl::Time When(double count) const {
    absl::MutexLock lock(&mu_);
    return limit_.When(count);
  }
  bool IsFull(absl::Time now) {
    absl::MutexLock lock(&mu_);
    return limit_.IsFull(now);
  }

 private:
  mutable absl::Mutex mu_;
  RateLimit limit_ ABSL_GUARDED_BY(mu_);
};

// A rate for each client.  What its connections have used counts on when they are closed.  Thread-safe.
class ClientRates {
 public:
  static constexpr size_t kMost = 65536;  // remembered clients without a connection

  ClientRates(double rate, double burst) : rate_(rate), burst_(burst) {}

  std::shared_ptr<SharedRate> Of(const std::string& client, absl::Time now) {
    absl::MutexLock lock(&mu_);
    if (rates_.size() >= kMost && !rates_.contains(client)) ForgetLocked(now);
    std::shared_ptr<SharedRate>& rate = rates_[client];
    if (rate == nullptr) rate = std::make_shared<SharedRate>(rate_, burst_, now);
    return rate;
  }

 private:
  // Makes room: forgets who is not connected and has used nothing lately, or else all who are not connected.
  void ForgetLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    absl::erase_if(rates_,
                   [now](const auto& entry) { return entry.second.use_count() == 1 && entry.second->IsFull(now); });
    if (rates_.size() < kMost) return;
    absl::erase_if(rates_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }

  const double rate_, burst_;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<SharedRate>> rates_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
