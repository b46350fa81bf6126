#include "server/group_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

void GroupStore::Open(const std::string& token) {
  std::list<Waiter> dropped;
  {
    absl::MutexLock lock(&mu_);
    token_ = token;
    values_.clear();
    dropped.swap(waiters_);
  }
  for (Waiter& waiter : dropped) waiter.done(absl::AbortedError("rendezvous: the epoch is over"));
}

absl::Status GroupStore::CheckToken(const std::string& token) const {
  if (token_.empty() || token != token_)
    return absl::PermissionDeniedError("rendezvous: not the token of the group that forms");
  return absl::OkStatus();
}

bool GroupStore::Lookup(const std::vector<std::string>& keys, std::vector<std::string>* values) const {
  values->clear();
  for (const std::string& key : keys) {
    const auto it = values_.find(key);
    if (it == values_.end()) return false;
    values->push_back(it->second);
  }
  return true;
}

absl::Status GroupStore::Set(const std::string& token, const std::string& key, std::string value) {
  std::vector<std::pair<std::function<void(Values)>, std::vector<std::string>>> ready;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckToken(token));
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous: key of ", key.size(), " bytes, limit ", kMaxKeyBytes));
    }
    if (value.size() > kMaxValueBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous: value of ", value.size(), " bytes, limit ", kMaxValueBytes));
    }
    if (values_.size() >= kMaxKeys)
      return absl::ResourceExhaustedError(absl::StrCat("rendezvous: more than ", kMaxKeys, " keys"));
    const auto [it, inserted] = values_.emplace(key, value);
    if (!inserted && it->second != value) {
      return absl::AlreadyExistsError(absl::StrCat("rendezvous: key ", key, " is set; two workers with one rank?"));
    }
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      std::vector<std::string> values;
      if (Lookup(waiter->keys, &values)) {
        ready.emplace_back(std::move(waiter->done), std::move(values));
        waiter = waiters_.erase(waiter);
      } else {
        ++waiter;
      }
    }
  }
  for (auto& [done, values] : ready) done(std::move(values));
  return absl::OkStatus();
}

void GroupStore::Get(const std::string& token, std::vector<std::string> keys, absl::Time deadline,
                     std::function<void(Values)> done) {
  std::vector<std::string> values;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = CheckToken(token);
    if (status.ok() && !Lookup(keys, &values)) {
      waiters_.push_back({std::move(keys), deadline, std::move(done)});
      return;
    }
  }
  if (status.ok()) {
    done(std::move(values));
  } else {
    done(status);
  }
}

void GroupStore::Sweep(absl::Time now) {
  std::list<Waiter> expired;
  {
    absl::MutexLock lock(&mu_);
    for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
      const auto next = std::next(waiter);
      if (waiter->deadline <= now) expired.splice(expired.end(), waiters_, waiter);
      waiter = next;
    }
  }
  for (Waiter& waiter : expired) {
    waiter.done(absl::DeadlineExceededError(
        absl::StrCat("rendezvous: nobody set ", waiter.keys.empty() ? "" : waiter.keys[0])));
  }
}

}  // namespace switchyard
