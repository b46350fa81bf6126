#include "server/keys/quotas.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kFill = absl::Minutes(1);  // of an empty bucket
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);

absl::Status OverQuota(const char* what, const Caller& caller, int64_t limit, int64_t wanted, int64_t left,
                       absl::Duration wait) {
  return rpc::WithRetry(
      rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUOTA,
                     absl::StrCat(what, " of the key ", caller.name, ": limit ", limit, ", ", left, " left, ", wanted,
                                  " wanted; try again in ", absl::FormatDuration(wait)),
                     {{"field", what}, {"limit", absl::StrCat(limit)}, {"actual", absl::StrCat(wanted)}}),
      wait);
}

}  // namespace

absl::Duration KeyQuotas::Take(Bucket* bucket, int64_t per_minute, int64_t amount, absl::Time now) {
  const auto full = static_cast<double>(per_minute);
  if (bucket->filled == absl::InfinitePast()) {
    *bucket = {full, now};
  } else if (now > bucket->filled) {
    bucket->left += full * absl::FDivDuration(now - bucket->filled, kFill);
    bucket->filled = now;
  }
  bucket->left = std::min(bucket->left, full);
  const double needed = std::min(static_cast<double>(amount), full);
  if (bucket->left < needed) {
    const absl::Duration wait = absl::Ceil((needed - bucket->left) / full * kFill, kShortestWait);
    return std::max(wait, kShortestWait);
  }
  bucket->left -= static_cast<double>(amount);
  return absl::ZeroDuration();
}

absl::Status KeyQuotas::TakeRequest(const Caller& caller, absl::Time now) {
  if (caller.requests_per_minute == 0) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  Bucket& bucket = requests_[caller.name];
  const absl::Duration wait = Take(&bucket, caller.requests_per_minute, 1, now);
  if (wait == absl::ZeroDuration()) return absl::OkStatus();
  return OverQuota("requests_per_minute", caller, caller.requests_per_minute, 1, 0, wait);
}

absl::Status KeyQuotas::TakeTokens(const Caller& caller, int64_t tokens, absl::Time now) {
  if (caller.tokens_per_minute == 0) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  Bucket& bucket = tokens_[caller.name];
  const absl::Duration wait = Take(&bucket, caller.tokens_per_minute, tokens, now);
  if (wait == absl::ZeroDuration()) return absl::OkStatus();
  const auto left = static_cast<int64_t>(std::max(0.0, bucket.left));
  return OverQuota("tokens_per_minute", caller, caller.tokens_per_minute, tokens, left, wait);
}

void KeyQuotas::GiveBackTokens(const Caller& caller, int64_t tokens) {
  if (caller.tokens_per_minute == 0) return;  // it took none
  absl::MutexLock lock(&mu_);
  const auto bucket = tokens_.find(caller.name);
  if (bucket != tokens_.end()) bucket->second.left += static_cast<double>(tokens);  // Take cuts it to the quota
}

}  // namespace switchyard::server
