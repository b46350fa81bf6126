// The secrets that workers present, and who they are by them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace switchyard::server {

// From the kernel's generator for secrets; 32 hex digits.
std::string DrawToken();

struct JoinTokens {
  std::string shared;  // of workers from elsewhere (--join_token_file); empty: whoever reaches the server may join
  std::string local;   // of those that this server starts, who alone get it

  // Unauthenticated: `presented` is neither.  Sets *local_index to -1 unless it is the local one: anybody may say that
  // it is the server's n-th worker, whose word would then stand above the others'.
  absl::Status Check(const std::string& presented, int* local_index) const;
};

}  // namespace switchyard::server
