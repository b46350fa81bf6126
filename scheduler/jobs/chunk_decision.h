// The decision about the number of chunks into which a training job's MoE layers cut their rows: made once, by what
// layers took before a step (workers/train/chunks/layer_times.h), as a rule the first.
//
// Weights' gradients of another number of chunks have other bits.  So the decision is journalled, and every later
// attempt of the job takes it from there.  Pure; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jobs {

struct ChunkDecision {
  int64_t step = 0;      // steps done when it was made
  int32_t world = 1;     // ranks that it was made for
  int64_t rows = 0;      // of a micro-batch, of all ranks
  int32_t chunks = 1;    // into which each MoE layer cuts them
  int64_t ns = 0;        // of the timed layers with so many chunks, on the slowest rank
  std::string why = {};  // what was measured; may be empty

  // "after step 0: 6144 rows in 4 chunks, some layers took 90 ms (1 chunk 99 ms, …)"
  std::string ToString() const;
  bool operator==(const ChunkDecision& other) const = default;
};

// A line with its end: "step=0 world=2 …".
std::string EncodeChunkDecision(const ChunkDecision& decision);
// None: there are no lines, or they are of a search in a job's first steps, by which jobs once chose.  InvalidArgument
// shows a text that is neither this nor a decision.
absl::StatusOr<std::optional<ChunkDecision>> DecodeChunkDecision(absl::string_view lines);

// FailedPrecondition: a decision that does not count on so many ranks, as it is of others or no number of chunks.
absl::Status CheckCounts(const ChunkDecision& decision, int32_t world);

}  // namespace switchyard::jobs
