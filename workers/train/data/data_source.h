// The data of a job: windows of packed tokens, in an order that is a function of seed and sample alone.
//
// kConcatenate cuts each file into windows of `length` tokens, with the next token as the last target; the rest of a
// file is not used.  With document_mask a window's documents are texts of their own: rows have their borders, and the
// first token of a document is nobody's target, as the row before it belongs to another.  kBestFit, with the mask only,
// fills windows with whole documents and leaves nothing of a file out (document_windows.h); a window then has as many
// rows as its documents, and no rows of padding.  Files of pairs of answers go with kBestFit alone; rows then say which
// pairs they have.
//
// WindowOrder maps sample s of the job to a window of all files; with weights mixture_order.h maps it to a sample of a
// file, and a WindowOrder of the file's own that to a window.  A step of B samples has [step · B, (step + 1) · B), so a
// job can continue from any step, on any number of ranks: rank r of R has the r-th of R equal, contiguous parts of a
// micro-batch.  Thread-compatible.  Errors: TokenFile's; InvalidArgument for files without a window (with weights: for
// any such file), or for a token outside the vocabulary.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/jobs/job_spec.h"
#include "scheduler/jobs/window_order.h"
#include "workers/train/data/document_windows.h"
#include "workers/train/data/mixture_order.h"
#include "workers/train/data/token_file.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

struct DataOptions {
  int64_t length = 0;  // tokens of a window
  int64_t vocab = 0;   // of the model
  uint64_t seed = 0;
  bool in_order = false;  // windows in the order of the files: for evaluation
  bool document_mask = false;
  jobs::WindowPacking packing = jobs::WindowPacking::kConcatenate;
  std::vector<double> weights = {};  // of the files, or none; not in_order
  // While kBestFit reads where documents begin: as in TokenFile::Verify.  Empty: nobody asks.
  std::function<bool(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

class DataSource {
 public:
  static absl::StatusOr<std::unique_ptr<DataSource>> Create(std::vector<TokenFile> files, const DataOptions& options);

  int64_t num_windows() const { return first_window_.back(); }
  int64_t num_tokens() const;
  bool of_pairs() const { return documents_ != nullptr && documents_->of_pairs(); }
  // The pairs of file f have the numbers [first_pairs()[f], first_pairs()[f + 1]) in TrainRows::pairs; those that no
  // window has among them.  Without pairs all are 0.
  absl::Span<const int64_t> first_pairs() const { return first_pair_; }
  absl::Span<const TokenFile> files() const { return files_; }
  // Those of a window, in its order.
  absl::StatusOr<std::vector<int64_t>> PairsOf(int64_t window);
  // The window of a sample, among all files'.
  int64_t WindowOf(int64_t sample) const { return PlaceOf(sample).window; }
  // Whether any window has a target.  progress: as in TokenFile::HasTarget.
  absl::StatusOr<bool> HasTarget(absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress) const;
  absl::StatusOr<TrainRows> Samples(int64_t first, int64_t count);
  // Those windows, whatever samples they are.
  absl::StatusOr<TrainRows> Windows(absl::Span<const int64_t> windows);
  // "41 sequences of 256 tokens from 200 documents, 3 of them longer and cut; 3.2 % of the sequences is padding"
  std::string ToString() const;

 private:
  struct Place {
    size_t file = 0;
    int64_t window = 0;
  };
  DataSource(std::vector<TokenFile> files, const DataOptions& options) : files_(std::move(files)), options_(options) {}
  absl::Status CountWindows();
  absl::Status MakeOrders();
  Place PlaceOf(int64_t sample) const;
  Place PlaceOfWindow(int64_t window) const;
  absl::Status AppendWindow(const Place& place, TrainRows* rows);
  absl::Status ReadTokens(const TokenFile& file, int64_t first, std::vector<int32_t>* tokens,
                          std::vector<uint8_t>* trained) const;
  absl::Status Append(const Place& place, TrainRows* rows) const;
  absl::Status AppendPacked(const Place& place, TrainRows* rows);
  absl::Status AppendBorders(const TokenFile& file, int64_t first, absl::Span<const int32_t> tokens,
                             TrainRows* rows) const;

  const std::vector<TokenFile> files_;
  const DataOptions options_;
  std::unique_ptr<DocumentWindows> documents_;  // null: kConcatenate
  std::vector<int64_t> first_window_ = {0};     // [files + 1]
  std::vector<int64_t> first_pair_ = {0};       // [files + 1]
  std::vector<jobs::WindowOrder> orders_;       // of all files together; with weights of each
  std::optional<MixtureOrder> mixture_;         // none: without weights
};

}  // namespace switchyard::train
