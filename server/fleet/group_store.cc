#include "server/fleet/group_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {

void GroupStore::Open(const std::string& token) {
  if (token.empty()) return;
  Store replaced;
  {
    absl::MutexLock lock(&mu_);
    replaced = std::exchange(stores_[token], Store());
  }
  ReportOver(&replaced);
}

void GroupStore::Close(const std::string& token) {
  std::map<std::string, Store>::node_type closed;
  {
    absl::MutexLock lock(&mu_);
    closed = stores_.extract(token);
  }
  if (!closed.empty()) ReportOver(&closed.mapped());
}

void GroupStore::CloseAll() {
  std::map<std::string, Store> closed;
  {
    absl::MutexLock lock(&mu_);
    closed.swap(stores_);
  }
  for (auto& [token, store] : closed) ReportOver(&store);
}

void GroupStore::ReportOver(Store* store) {
  for (Waiter& waiter : store->waiters) waiter.done(absl::AbortedError("rendezvous: the epoch is over"));
}

absl::StatusOr<GroupStore::Store*> GroupStore::Find(const std::string& token) {
  const auto store = stores_.find(token);
  if (store != stores_.end()) return &store->second;
  return absl::PermissionDeniedError("rendezvous: not the token of a group that forms");
}

bool GroupStore::Lookup(const Store& store, const std::vector<std::string>& keys, std::vector<std::string>* values) {
  values->clear();
  for (const std::string& key : keys) {
    const auto it = store.values.find(key);
    if (it == store.values.end()) return false;
    values->push_back(it->second);
  }
  return true;
}

absl::Status GroupStore::Set(const std::string& token, const std::string& key, std::string value) {
  std::vector<std::pair<std::function<void(Values)>, std::vector<std::string>>> ready;
  {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(Store* const store, Find(token));
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous: key of ", key.size(), " bytes, limit ", kMaxKeyBytes));
    }
    if (value.size() > kMaxValueBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous: value of ", value.size(), " bytes, limit ", kMaxValueBytes));
    }
    if (store->values.size() >= kMaxKeys)
      return absl::ResourceExhaustedError(absl::StrCat("rendezvous: more than ", kMaxKeys, " keys"));
    const auto [it, inserted] = store->values.emplace(key, value);
    if (!inserted && it->second != value) {
      return absl::AlreadyExistsError(absl::StrCat("rendezvous: key ", key, " is set; two workers with one rank?"));
    }
    for (auto waiter = store->waiters.begin(); waiter != store->waiters.end();) {
      std::vector<std::string> values;
      if (Lookup(*store, waiter->keys, &values)) {
        ready.emplace_back(std::move(waiter->done), std::move(values));
        waiter = store->waiters.erase(waiter);
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
  Values values = std::vector<std::string>();
  {
    absl::MutexLock lock(&mu_);
    if (const absl::StatusOr<Store*> store = Find(token); !store.ok()) {
      values = store.status();
    } else if (!Lookup(**store, keys, &*values)) {
      (*store)->waiters.push_back({std::move(keys), deadline, std::move(done)});
      return;
    }
  }
  done(std::move(values));
}

void GroupStore::Sweep(absl::Time now) {
  std::list<Waiter> expired;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [token, store] : stores_) {
      for (auto waiter = store.waiters.begin(); waiter != store.waiters.end();) {
        const auto next = std::next(waiter);
        if (waiter->deadline <= now) expired.splice(expired.end(), store.waiters, waiter);
        waiter = next;
      }
    }
  }
  for (Waiter& waiter : expired) {
    waiter.done(absl::DeadlineExceededError(
        absl::StrCat("rendezvous: nobody set ", waiter.keys.empty() ? "" : waiter.keys[0])));
  }
}

}  // namespace switchyard::server
