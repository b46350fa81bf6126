// The data of a job: windows of packed tokens, in an order that is a function of seed and sample alone.
//
// Each file is cut into windows of `length` tokens, with the next token as the last target; the rest of a file is not
// used.  With document_mask a window's documents are texts of their own: rows have their borders, and the first token
// of a document is nobody's target, as the row before it belongs to another.  WindowOrder maps sample s of the job to a
// window; a step of B samples has [step · B, (step + 1) · B), so a job can continue from any step, on any number of
// ranks: rank r of R has the r-th of R equal, contiguous parts of a micro-batch.  Thread-compatible. Errors:
// TokenFile's; InvalidArgument for fewer tokens than one window, for a token outside the vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/jobs/window_order.h"
#include "workers/train/data/token_file.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

struct DataOptions {
  int64_t length = 0;  // tokens of a window
  int64_t vocab = 0;   // of the model
  uint64_t seed = 0;
  bool in_order = false;  // windows in the order of the files: for evaluation
  bool document_mask = false;
};

class DataSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Create(std::vector<TokenFile> files, const DataOptions& options);

  int64_t num_windows() const { return first_window_.back(); }
  int64_t num_tokens() const;
  // Whether any window has a target.  progress: as in TokenFile::HasTarget.
  absl::StatusOr<bool> HasTarget(absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress) const;
  absl::StatusOr<TrainRows> Samples(int64_t first, int64_t count) const;

 private:
  DataSource(std::vector<TokenFile> files, const DataOptions& options, std::vector<int64_t> first_window)
      : files_(std::move(files)),
        options_(options),
        first_window_(std::move(first_window)),
        order_(options.seed, first_window_.back()) {}
  absl::Status Append(int64_t window, TrainRows* rows) const;
  absl::Status AppendBorders(const TokenFile& file, int64_t first, absl::Span<const int32_t> tokens,
                             TrainRows* rows) const;

  const std::vector<TokenFile> files_;
  const DataOptions options_;
  const std::vector<int64_t> first_window_;  // [files + 1]
  const jobs::WindowOrder order_;
};

}  // namespace switchyard::train
