#include "workers/comm/group/rendezvous_store.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/await.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {

absl::StatusOr<std::vector<std::string>> ExchangeValues(RendezvousStore* store, absl::string_view what, int rank,
                                                        int world, absl::string_view value, absl::Time deadline) {
  std::vector<std::string> keys;
  for (int r = 0; r < world; ++r) keys.push_back(absl::StrCat(what, "/", r));
  RETURN_IF_ERROR(store->Set(keys[static_cast<size_t>(rank)], value));
  return store->Get(keys, deadline);
}

absl::Status InMemoryStore::Set(absl::string_view key, absl::string_view value) {
  absl::MutexLock lock(&mu_);
  const auto [it, inserted] =
      values_.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  return inserted ? absl::OkStatus() : absl::AlreadyExistsError(absl::StrCat("key ", key, " is already set"));
}

absl::StatusOr<std::vector<std::string>> InMemoryStore::Get(absl::Span<const std::string> keys, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    const auto there = [&] {
      mu_.AssertHeld();
      return values_.count(key) > 0 || !cancelled_.empty();
    };
    if (!AwaitUntil(&mu_, absl::Condition(&there), deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("nobody set ", key, " in time"));
    }
    if (!cancelled_.empty()) return absl::CancelledError(cancelled_);
    found.push_back(values_.find(key)->second);
  }
  return found;
}

void InMemoryStore::CancelWaits(absl::string_view reason) {
  absl::MutexLock lock(&mu_);
  cancelled_ = reason.empty() ? "cancelled" : std::string(reason.data(), reason.size());
}

absl::Status InMemoryStore::Cancelled() {
  absl::MutexLock lock(&mu_);
  return cancelled_.empty() ? absl::OkStatus() : absl::CancelledError(cancelled_);
}

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value) {
  return store_->Set(absl::StrCat(prefix_, key), value);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::Get(absl::Span<const std::string> keys, absl::Time deadline) {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(absl::StrCat(prefix_, key));
  return store_->Get(names, deadline);
}

}  // namespace switchyard::comm
