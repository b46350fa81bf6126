// Writes routing traces from the API's answers: GetModelInfo, and Generate with return_expert_paths.
//
// The format is in scheduler/base/io/trace_bytes.h; scheduler/popularity/trace/trace_file.h reads it.  Pure: bytes, no
// files.  DataLoss: the server's answers contradict each other.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::rpc {

// Returns the file's header; it has no channels, since nothing was predicted.
absl::StatusOr<std::string> TraceBeginning(const v1::GetModelInfoResponse& model);

// One choice of a request.
struct TracedSequence {
  absl::string_view label;  // at most kMaxTraceNameBytes bytes are kept
  int32_t num_prompt = 0;
  absl::Span<const int32_t> token_ids;     // [prompt + completion]; the last one was not computed and is left out
  const v1::ExpertPaths* paths = nullptr;  // all of them, from position 0 on
};
absl::StatusOr<std::string> TraceOf(const v1::GetModelInfoResponse& model, const TracedSequence& sequence);

}  // namespace switchyard::rpc
