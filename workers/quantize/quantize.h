// Quantizes a checkpoint: reads a directory with weights in bf16, fp16, fp32 or fp64, and writes one in
// compressed-tensors' pack-quantized, as vLLM, transformers and Switchyard's own server load it.
//
// Each group is rounded to nearest.  Weights are read a few rows at a time; in memory is what one layer becomes.
// Nothing is there under the output's name before all is written and synced.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "workers/quantize/group_codes.h"

namespace switchyard::quantize {

struct QuantizeOptions {
  std::string model;   // a directory
  std::string output;  // a directory that does not exist, or is empty
  GroupFormat format;
  int threads = 1;
  std::function<bool()> stop = [] { return false; };              // asked often; true ends with Cancelled
  std::function<void(absl::string_view line)> say = [](auto) {};  // lines of progress, at most one in two seconds
};

struct QuantizeReport {
  int64_t matrices = 0;      // that were quantized
  int64_t bytes_before = 0;  // of the checkpoint's tensors
  int64_t bytes_after = 0;
};

// Blocks until the directory is written.
// Errors: InvalidArgument, Unimplemented, NotFound and AlreadyExists, before anything is written, for a model, an
// output or a format that cannot be; ResourceExhausted for a disk without room; Cancelled; those of files.
absl::StatusOr<QuantizeReport> Quantize(const QuantizeOptions& options);

}  // namespace switchyard::quantize
