#include "server/admission/join_tokens.h"

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "scheduler/base/check.h"

namespace switchyard::server {
namespace {

// The time does not depend on which byte differs.
bool ConstantTimeEqual(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

std::string DrawToken() {
  std::string bytes(16, '\0');
  SY_CHECK_EQ(getentropy(bytes.data(), bytes.size()), 0);
  return absl::BytesToHexString(bytes);
}

absl::Status JoinTokens::Check(const std::string& presented, int* local_index) const {
  if (!local.empty() && ConstantTimeEqual(presented, local)) return absl::OkStatus();
  *local_index = -1;
  if (ConstantTimeEqual(presented, shared)) return absl::OkStatus();
  return absl::UnauthenticatedError("the join token is not this server's; start the worker with its --join_token_file");
}

}  // namespace switchyard::server
