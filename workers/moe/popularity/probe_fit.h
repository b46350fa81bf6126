// Fits the probes of all layers while serving, in a share of the step's time: rows of each pass go into the sums
// (ridge_probe.h) as that share allows, and a thread of its own solves them when there are enough, then again each time
// they have doubled.
//
// The cost of a row is measured as it is added; so wide models add few rows, and models whose sums would be larger than
// kMaxBytes none: a profiling run (no limit) fits those.  A row's features wait for the logits of the layers one and
// two ahead of the same pass.  On the CPU.  Thread-compatible.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/popularity/profile_bundle.h"
#include "workers/moe/popularity/ridge_probe.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {

struct ProbeFitOptions {
  int num_layers = 0;
  int64_t num_experts = 0;
  int64_t hidden = 0;
  double share = 0.02;  // of the passes' time; >= 1: all rows, whatever it takes
};

class ProbeFit {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  // The bytes of all layers' sums.
  static int64_t BytesOf(const ProbeFitOptions& options);
  // The bytes that solving takes beside them, at most: a copy of a layer's sums, and what is made of them.
  static int64_t SolvingBytesOf(const ProbeFitOptions& options);

  // REQUIRES: layers >= 1, share > 0; BytesOf within kMaxBytes, or a share of 1 and memory for it.
  explicit ProbeFit(ProbeFitOptions options);
  ~ProbeFit();  // waits for a solution under way

  // A pass of num_rows rows begins at `now`.
  void Begin(int64_t num_rows, absl::Time now);
  // The pass's rows that OnGate reads, [first, first + count); the others need not be there.
  struct Window {
    int64_t first = 0, count = 0;
  };
  Window window() const;
  // The gate of a layer has run; layers in order.  A pass with a row that is not finite adds nothing more.
  // Errors: InvalidArgument for shapes that do not fit.
  absl::Status OnGate(const Stream& stream, int layer, const TensorView& x,  // [T, H]
                      const TensorView& logits,                              // [T, E]
                      absl::Time now);
  // Maps that were solved since the last call.
  std::vector<popularity::ProbeMap> TakeSolved();
  // All maps from the sums as they are, now; none of a layer with fewer rows than features.  Solves a copy of one layer
  // at a time, so that rows can be added meanwhile.  Blocks.
  std::vector<popularity::ProbeMap> SolveNow(const Stream& stream) const;

  int64_t num_rows() const {
    absl::MutexLock lock(&sums_mu_);
    return sums_.empty() ? 0 : sums_.front().num_rows();
  }

 private:
  // A layer's window of rows, kept until the layers ahead have run.
  struct Seen {
    Tensor x;       // [n, H]
    Tensor logits;  // [n, E]
  };
  int num_targets(int layer) const;
  absl::Status AddRows(const Stream& stream, int layer);
  void StartSolving();

  const ProbeFitOptions options_;
  mutable absl::Mutex sums_mu_;                             // added to by the pass, copied by the solver
  std::vector<RidgeProbe> sums_ ABSL_GUARDED_BY(sums_mu_);  // [L - 1]
  std::vector<Seen> seen_;                                  // [L]
  int64_t begin_ = 0, count_ = 0;                           // the pass's window of rows
  int64_t num_passes_ = 0;
  absl::Time pass_begin_;
  double credit_ = 0;           // seconds that may be spent
  double seconds_per_row_ = 0;  // all layers; 0 = not known yet
  double spent_ = 0;            // seconds, in this pass
  int64_t solve_at_;            // rows

  std::thread solver_;
  mutable absl::Mutex mu_;
  bool solving_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<popularity::ProbeMap> solved_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::moe
