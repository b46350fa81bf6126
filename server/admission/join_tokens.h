// The secrets that workers present when they join.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace switchyard::server {

// From the kernel's generator for secrets; 32 hex digits.
std::string DrawToken();

struct JoinTokens {
  std::string shared;  // of workers from elsewhere (--join_token_file); empty: every worker may join
  std::string local;   // of the workers that this server starts

  // Unauthenticated: `presented` is neither.  Sets *local_index to -1 unless it is the local one, as a stranger may
  // claim to be the server's n-th worker, which decides what the others must be.
  absl::Status Check(const std::string& presented, int* local_index) const;
};

}  // namespace switchyard::server
