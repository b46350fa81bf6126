// Secrets that workers present when they join.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace switchyard::server {

// Draws 32 hex digits from the kernel's random generator.
std::string DrawToken();

struct JoinTokens {
  std::string shared;  // of workers from elsewhere (--join_token_file); empty: every worker may join
  std::string local;   // of workers that this server starts

  // Unauthenticated: `presented` is neither token.  Sets *local_index to -1 unless it is the local token: a worker from
  // elsewhere must not pass for the server's n-th worker, which determines what the others must be.
  absl::Status Check(const std::string& presented, int* local_index) const;
};

}  // namespace switchyard::server
