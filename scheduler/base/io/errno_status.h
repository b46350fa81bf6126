// What a failed call of the file system means to whoever asked for it.
#pragma once

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

inline absl::StatusCode ErrnoCode(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return absl::StatusCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      return absl::StatusCode::kPermissionDenied;
    case ENOTDIR:
    case EISDIR:
      return absl::StatusCode::kInvalidArgument;
    case EIO:
    case ESTALE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// "<what>: <the error's text>".
inline absl::Status ErrnoStatus(int error, absl::string_view what) {
  return absl::Status(ErrnoCode(error), absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace switchyard
