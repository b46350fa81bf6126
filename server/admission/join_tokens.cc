#include "server/admission/join_tokens.h"

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "scheduler/base/check.h"
#include "scheduler/base/constant_time.h"

namespace switchyard::server {

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
