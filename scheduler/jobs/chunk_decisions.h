// Decisions about the number of chunks into which a training job cuts each MoE layer's rows, and the controller that
// makes them between steps: with ChunkRule::kAuto once, by what layers took before the first step
// (workers/train/chunks/layer_times.h); with kProfile after every few steps, by the times of these steps
// (chunk_search.h), until the search has ended.
//
//   after each step AddStep; if Decides(step): Propose with the slowest rank's time, write the outcome into the
//   journal, Adopt it.  A checkpoint of that step is saved afterwards.
//
// Weights' gradients of another number of chunks have other bits, those of trials too.  So a journal makes a job go the
// same way again: Replay adopts what was decided up to its step; decisions after that step are repeated at the same
// steps (Predicts), whatever is measured.  Pure; thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/jobs/chunk_search.h"

namespace switchyard::jobs {

enum class ChunkReason : uint8_t {
  kTried,     // the next number is tried
  kFound,     // the search has ended for these rows
  kMeasured,  // before the first step
};

// "tried", "found", "measured".
absl::string_view ChunkReasonName(ChunkReason reason);

struct ChunkDecision {
  int64_t step = 0;          // steps done when it was made; it holds from the next one on
  int32_t world = 1;         // ranks that it was made for
  int64_t rows = 0;          // of a micro-batch, of all ranks
  int32_t from = 1, to = 1;  // chunks
  int64_t ns = 0;            // of a step with `from`, on the slowest rank; kMeasured: of layers with `to`
  ChunkReason reason = ChunkReason::kTried;
  std::string why = {};  // what was measured; may be empty

  // "after step 8: chunks 1 -> 4 of 6144 rows, a step took 90 ms (tried)"
  std::string ToString() const;
  bool operator==(const ChunkDecision& other) const = default;
};

// One line without its end: "step=4 world=2 …".
std::string EncodeChunkDecision(const ChunkDecision& decision);
// Lines, each with its end.  InvalidArgument names the first that is none.
std::string EncodeChunkDecisions(absl::Span<const ChunkDecision> decisions);
absl::StatusOr<std::vector<ChunkDecision>> DecodeChunkDecisions(absl::string_view lines);

struct ChunkOptions {
  int32_t world = 1;
  bool searches = false;        // kProfile; else kAuto
  int32_t least = 1, most = 8;  // that are tried: the paper's most; its least is 2
  int64_t steps = 3;            // whose median counts, behind one that makes buffers
};

class ChunkController {
 public:
  // REQUIRES: world, steps >= 1; 1 <= least <= most.
  explicit ChunkController(const ChunkOptions& options);

  // Of a micro-batch that trains, of so many rows on all ranks.
  int32_t ChunksFor(int64_t rows) const;
  // Adopted so far.
  const std::vector<ChunkDecision>& decisions() const { return decisions_; }
  const ChunkSearch& search() const { return search_; }

  // A step was done whose micro-batches had so many rows; the same on all ranks but ns.  Call it with the search only.
  void AddStep(int64_t rows, int64_t ns);
  // Whether a decision is due when so many steps are done: the search has enough of them for the rows of the last, or
  // the journal has one; the one by measuring is due before the first step.
  bool Decides(int64_t step) const;
  // Whether the replayed journal has the decision of that step.
  bool Predicts(int64_t step) const { return !to_replay_.empty() && to_replay_.front().step == step; }
  // This rank's median of the steps that count.  REQUIRES: the search Decides, and does not only predict.
  int64_t MedianNs() const;
  // Changes nothing.  ns: the same on all ranks.  REQUIRES: Decides(step); without the search: Predicts(step).
  ChunkDecision Propose(int64_t step, int64_t ns) const;
  // REQUIRES: a decision that Follows.
  void Adopt(const ChunkDecision& decision);
  // Whether this controller could have made the decision now.  InvalidArgument says why not.
  absl::Status Follows(const ChunkDecision& decision) const;

  // Goes on after so many steps.  REQUIRES: nothing was adopted before.  Errors change nothing: FailedPrecondition for
  // a journal of another number of ranks; InvalidArgument for one that this cannot have written.
  absl::Status Replay(absl::Span<const ChunkDecision> journal, int64_t step);

 private:
  const ChunkOptions options_;
  ChunkSearch search_;
  int32_t measured_ = 0;  // 0: not yet
  std::vector<ChunkDecision> decisions_;
  std::vector<ChunkDecision> to_replay_;  // the journal's decisions still to come
  // Of the steps with the present chunks; by rows.  -1: the first, which does not count.
  std::map<int64_t, std::vector<int64_t>> steps_;
  int64_t last_rows_ = 0;
};

}  // namespace switchyard::jobs
