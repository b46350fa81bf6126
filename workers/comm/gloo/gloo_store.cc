#include "workers/comm/gloo/gloo_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gloo/common/error.h"

namespace switchyard::comm {

GlooStore::GlooStore(RendezvousStore* store, std::string prefix, absl::Time deadline)
    : store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}

void GlooStore::ThrowUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  if (status_.ok()) status_ = status;
  throw gloo::Exception(std::string(status.message()));
}

std::vector<std::string> GlooStore::Prefixed(const std::vector<std::string>& keys) const {
  std::vector<std::string> prefixed;
  for (const std::string& key : keys) prefixed.push_back(absl::StrCat(prefix_, key));
  return prefixed;
}

void GlooStore::set(const std::string& key, const std::vector<char>& value) {
  ThrowUnlessOk(store_->Set(absl::StrCat(prefix_, key), absl::string_view(value.data(), value.size())));
}

std::vector<char> GlooStore::get(const std::string& key) {
  const absl::StatusOr<std::vector<std::string>> values = store_->Get(Prefixed({key}), deadline_);
  ThrowUnlessOk(values.status());
  return {values->front().begin(), values->front().end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  ThrowUnlessOk(store_->Get(Prefixed(keys), deadline_).status());
}

void GlooStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) { wait(keys); }

}  // namespace switchyard::comm
