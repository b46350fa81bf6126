// The token that workers present to their server, from a file: a secret belongs neither in argv nor in the environment.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace switchyard::rpc {

// The file's text without line ends behind it; "" when `path` is empty.  InvalidArgument naming the flag
// --join_token_file when it is no file that only its owner may use (secret_file.h), or has fewer than `min_bytes` or
// more than 1000 bytes.  Never shows the token.
absl::StatusOr<std::string> ReadJoinToken(const std::string& path, size_t min_bytes);

}  // namespace switchyard::rpc
