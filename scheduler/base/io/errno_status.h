// The status of a failed call of the file system.
#pragma once

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace switchyard {

inline absl::StatusCode ErrnoCode(int error) {
  using enum absl::StatusCode;
  constexpr std::pair<int, absl::StatusCode> kCodes[] = {
      {ENOENT, kNotFound},          {EEXIST, kAlreadyExists},     {ENOTEMPTY, kAlreadyExists},
      {ENOSPC, kResourceExhausted}, {EDQUOT, kResourceExhausted}, {EFBIG, kResourceExhausted},
      {EACCES, kPermissionDenied},  {EPERM, kPermissionDenied},   {EROFS, kPermissionDenied},
      {ELOOP, kPermissionDenied},   {ENOTDIR, kInvalidArgument},  {EISDIR, kInvalidArgument},
      {EIO, kUnavailable},          {ESTALE, kUnavailable},       {EMFILE, kUnavailable},
      {ENFILE, kUnavailable},       {ENOMEM, kUnavailable},
  };
  for (const auto& [number, code] : kCodes) {
    if (number == error) return code;
  }
  return kInternal;
}

// "<what>: <the error's text>".
inline absl::Status ErrnoStatus(int error, absl::string_view what) {
  return absl::Status(ErrnoCode(error), absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace switchyard
