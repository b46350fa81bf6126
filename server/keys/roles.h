// Who may call what: the roles of API keys, and the least role of each method.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::server {

// Each may do what those before it may.
enum class Role {
  kUser,     // generate text, and what goes with it
  kTrainer,  // also pack data, and train jobs of its own
  kAdmin,    // everything
};

absl::string_view NameOf(Role role);
std::optional<Role> ParseRole(absl::string_view name);

struct MethodRole {
  const char* method;  // "InferenceService/Generate": the name after "/switchyard.v1."
  Role least;
};

// Every method that wants a key.  Those of WorkerService, which have the join token, and of gRPC's health service are
// not here.
absl::Span<const MethodRole> MethodRoles();

// Returns the least role that may call the method; nothing for one that is not in the table: nobody may call it.
std::optional<Role> LeastRoleOf(absl::string_view method);

// Who makes a call.  Without a keys file every caller is the default one, which may do everything.
struct Caller {
  std::string name;  // of the key; empty: this server has no keys
  Role role = Role::kAdmin;
  int64_t requests_per_minute = 0;  // 0 = no limit
  int64_t tokens_per_minute = 0;
  // Whether it may see and end what the key `owner` began.
  bool MayTouch(absl::string_view owner) const { return role == Role::kAdmin || name == owner; }
};

// Returns what tells requests apart: ids of one owner differ from those of others.  (Neither has line ends.)
inline std::string RequestKey(const std::string& owner, const std::string& request_id) {
  return owner.empty() || request_id.empty() ? request_id : owner + "\n" + request_id;
}

}  // namespace switchyard::server
