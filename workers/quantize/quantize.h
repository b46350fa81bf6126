// Quantizes a checkpoint: reads a directory with weights in bf16, fp16, fp32 or fp64, and writes one in
// compressed-tensors' pack-quantized, as vLLM, transformers and Switchyard's own server load it.
//
// Without a dataset each group is rounded to nearest; weights are read a few rows at a time, and in memory is what one
// layer becomes.  With one, GPTQ chooses the codes layer by layer, by the inputs that each matrix gets from the layers
// before it, which are quantized already (calibration.h); in memory are one layer of the model and the hidden rows of
// the samples.
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
  // Of packed tokens (samples.h), by which the model is calibrated and measured; empty: rounded to nearest.
  std::string dataset;
  int64_t samples = 128;       // windows to calibrate by
  int64_t length = 0;          // tokens of a window; 0: 512, or the model's context if that is shorter
  std::string dtype = "auto";  // to run layers in: fp32, bf16, fp16, fp64; auto: the model's
  std::function<bool()> stop = [] { return false; };              // asked often; true ends with Cancelled
  std::function<void(absl::string_view line)> say = [](auto) {};  // lines of progress, at most one in two seconds
};

struct QuantizeReport {
  int64_t matrices = 0;      // that were quantized
  int64_t bytes_before = 0;  // of the checkpoint's tensors
  int64_t bytes_after = 0;
  // With a dataset:
  int64_t samples = 0;                     // windows that calibrated it: those wanted, or all that there are
  int64_t rounded_experts = 0;             // rounded to nearest, as few rows chose them, over all layers
  int64_t held_out_tokens = 0;             // whose bits were measured
  int64_t held_out_bytes = 0;              // that they stand for; 0: unknown, as the model has no tokenizer.json
  double bits_before = 0, bits_after = 0;  // of all of them
};

// Blocks until the directory is written.
// Errors: InvalidArgument, Unimplemented, NotFound and AlreadyExists, before anything is written, for a model, an
// output, a format or a dataset that cannot be; ResourceExhausted for a disk or memory without room; Cancelled; those
// of files.
absl::StatusOr<QuantizeReport> Quantize(const QuantizeOptions& options);

}  // namespace switchyard::quantize
