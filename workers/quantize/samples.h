// The texts by which a model is calibrated, and those by which it is measured: windows of a file of packed tokens.
//
// The file is cut into windows of `length` tokens.  The last ones are held out: nothing is fitted to them.  Of those
// before, as many as are wanted are taken at even distances, or all.  A document is a sequence of its own, as far as a
// window has it.  Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/model/config/config.h"

namespace switchyard::quantize {

inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr int64_t kMostTokenizerBytes = int64_t{64} << 20;

inline constexpr int64_t kMostHeldOut = 16;  // windows

struct SampleOptions {
  std::string dataset;  // a file of `switchyard data pack`
  std::string model;    // its directory, whose tokenizer the file has to have
  int64_t samples = 128;
  int64_t length = 512;
};

// Windows one after the other.
struct Windows {
  std::vector<int32_t> tokens;
  // By token: it is predicted by those before it, and its file says that it is trained.
  std::vector<uint8_t> is_target;
  std::vector<int64_t> begins;  // of sequences, rising: of windows, and of documents within them

  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }
};

struct Samples {
  int64_t length = 0;
  Windows calibration, held_out;
};

// stop: asked between pieces; true ends with Cancelled.
// InvalidArgument: no such file of tokens, one of another tokenizer or vocabulary, or of fewer than two windows; a
// length that the model's context does not have.
absl::StatusOr<Samples> ReadSamples(const SampleOptions& options, const model::ModelConfig& config,
                                    const std::function<bool()>& stop);

}  // namespace switchyard::quantize
