// Reads small files of which some hold secrets.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace switchyard::rpc {

// Returns the file's bytes.  INVALID_ARGUMENT "<path>: <why>" if it cannot be read, is no regular file, belongs to
// another user, may be read or written by others than its owner, or has more than max_bytes.  Never waits, not even for
// a FIFO.  Errors never show what the file says.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t max_bytes);
// Likewise of a file that others may read and own, such as a certificate.
absl::StatusOr<std::string> ReadPublicFile(const std::string& path, size_t max_bytes);

}  // namespace switchyard::rpc
