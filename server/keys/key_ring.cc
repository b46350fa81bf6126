#include "server/keys/key_ring.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/api_key.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

absl::Status NoKey(absl::string_view message) {
  return rpc::MakeError(absl::StatusCode::kUnauthenticated, v1::NO_KEY, message);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(std::string path) {
  ASSIGN_OR_RETURN(KeySet keys, KeySet::Read(path));
  return std::unique_ptr<KeyRing>(new KeyRing(std::move(path), std::move(keys)));
}

absl::StatusOr<size_t> KeyRing::Reload() {
  ASSIGN_OR_RETURN(KeySet read, KeySet::Read(path_));
  auto keys = std::make_shared<const KeySet>(std::move(read));
  absl::MutexLock lock(&mu_);
  keys_ = keys;
  return keys->keys().size();
}

absl::StatusOr<Caller> KeyRing::Admit(absl::string_view method, absl::Span<const absl::string_view> authorization,
                                      KeyPlace place) const {
  const absl::string_view name = place == KeyPlace::kHeader ? "header `Authorization" : "metadata `authorization";
  if (authorization.empty()) return NoKey(absl::StrCat("this server wants an API key: ", name, ": Bearer KEY`"));
  absl::string_view presented = authorization[0];
  if (authorization.size() > 1 || !absl::StartsWithIgnoreCase(presented, rpc::kBearer)) {
    return NoKey(absl::StrCat("the ", name, "` must have one value, `Bearer KEY`"));
  }
  presented.remove_prefix(sizeof(rpc::kBearer) - 1);
  const std::shared_ptr<const KeySet> keys = this->keys();
  const ApiKey* const key = presented.empty() ? nullptr : keys->Find(presented);
  if (key == nullptr) return NoKey("the API key is none of this server's");
  const std::optional<Role> least = LeastRoleOf(method);
  if (!least.has_value() || key->role < *least) {
    const std::string wanted(NameOf(least.value_or(Role::kAdmin)));
    return rpc::MakeError(absl::StatusCode::kPermissionDenied, v1::WRONG_ROLE,
                          absl::StrCat("the key ", key->name, " has the role ", NameOf(key->role), "; ", method,
                                       least.has_value() ? absl::StrCat(" wants ", wanted) : " is nobody's"),
                          {{"limit", wanted}, {"actual", std::string(NameOf(key->role))}});
  }
  return Caller{key->name, key->role, key->requests_per_minute, key->tokens_per_minute};
}

int64_t KeyRing::DiskGibOf(absl::string_view name) const {
  const std::shared_ptr<const KeySet> keys = this->keys();
  for (const ApiKey& key : keys->keys()) {
    if (key.name == name) return key.disk_gib;
  }
  return 0;
}

}  // namespace switchyard::server
