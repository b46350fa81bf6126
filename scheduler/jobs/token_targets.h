// Whether a file of packed tokens (token_format.h) has anything to train.
//
// Training reads windows: window w of a file are the tokens [w * length, w * length + length], of which all but the
// first are targets where the mask says so.  Pure: the caller reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::jobs {

// Fills `to` with the file's bytes from `begin` on; its error ends the search.
using ReadTokenBytes = absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)>;

// Whether some token that windows of `length` cover is a target.  Reads the mask, no token, and no further than the
// first target.  REQUIRES: the header is of a whole file, length >= 1.
absl::StatusOr<bool> HasTarget(const TokenFileHeader& header, int64_t length, ReadTokenBytes read);

// InvalidArgument: why so many files of so many tokens in all are of no use.
absl::Status NoTargetError(size_t files, int64_t tokens, int64_t length);

}  // namespace switchyard::jobs
