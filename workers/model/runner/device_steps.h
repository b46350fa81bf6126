// Steps on a device that need no host between plan and tokens: enqueued now, collected later, so that the host may
// prepare the next one meanwhile.
//
// Tokens are sampled on the device and stay there for the next step, which the host may enqueue before it knows them: a
// row whose token is to come is -1 - slot in Batch::tokens.  A step of decodes alone is captured once for each of a few
// sizes (DecodeBucket), at the start or when it first comes, and replayed with padding rows, which choose no expert.
// Where a rank's device has no memory left for a graph, steps of that size run without one, and so do larger ones that
// have none yet: on all ranks, as what NCCL captured on one it must have captured on all.
// What the host has to say of a step travels in one copy.
// Thread-compatible.  Errors: the device's and the communicator's; after one the steps under way are lost (Clear).
// Does not do: sampling that needs the host (IsPlainSampling).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/forward/batch.h"
#include "workers/model/forward/model.h"
#include "workers/model/runner/batch_upload.h"
#include "workers/model/runner/kv_cache.h"
#include "workers/ops/sampling/device_sampling.h"
#include "workers/tensor/device.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::model {

// The rows of the graph for `rows` decodes; 0: so many are not recorded.  Pure.
int64_t DecodeBucket(int64_t rows, int64_t max_rows);
inline constexpr int64_t kMaxGraphRows = 256;

// How one of batch.logit_rows is sampled.
struct PlainRow {
  const batching::SamplingParams* params = nullptr;  // borrowed
  int64_t index = 0;                                 // of the output token
  batching::SlotId slot = 0;
};

// Of the graphs of steps of decodes.
struct GraphCounters {
  int64_t captured = 0;
  int64_t did_not_fit = 0;  // captures that ended without a graph, as a rank's device had no memory left
  double capture_seconds = 0;
  int64_t replayed = 0;  // steps; not those of Capture
};

// The least of all ranks' numbers.  Every rank of the group calls it.  Errors: the communicator's.
absl::StatusOr<int64_t> LeastOfRanks(comm::Communicator* comm, int64_t mine, absl::Time deadline);

struct CollectedStep {
  std::vector<int32_t> tokens;         // of each PlainRow; -1 = its logits were no numbers
  std::vector<int32_t> expert_counts;  // [L * E]
  std::vector<int32_t> decode_counts;  // of those, the decoded rows'; empty = none
};

class DeviceSteps {
 public:
  struct Limits {
    int64_t slots = 0;
    int64_t rows = 0;    // of a step
    int64_t blocks = 0;  // of a sequence
    int64_t context = 0;
    bool graphs = true;
  };
  static constexpr int kMaxUnderWay = 2;

  // Takes all memory that steps need of the device, but for graphs.  Errors: ResourceExhausted, the device's.
  static absl::StatusOr<std::unique_ptr<DeviceSteps>> Create(const Stream& stream, Model* model, const Limits& limits);
  // Before the first step.  Borrowed.
  void UseCache(KvCache* cache) { cache_ = cache; }

  // The sizes of the graphs for steps of at most so many decodes, in rising order.
  std::vector<int64_t> Buckets(int64_t most_decodes) const;
  // Captures the graph of that size, unless it is there, by steps of padding alone.  False: there is no memory for it
  // (for the graph; what is allocated while its step is recorded, as by NCCL, must fit).
  // Every rank of the group calls it alike.  Blocks until done, at most until moe.deadline.
  // REQUIRES: under_way() == 0.
  absl::StatusOr<bool> Capture(const moe::MoeContext& moe, int64_t bucket);

  // Copies the batch to the device, for a step that the caller runs itself.
  absl::Status Upload(Batch* batch);
  // Enqueues a whole step.  REQUIRES: under_way() < kMaxUnderWay; rows[i] is for batch->logit_rows[i].
  // most_decodes > 0, the same on all ranks: every sequence has one row, which is sampled, and no rank has more rows.
  // Such a step is recorded and replayed; with several ranks its rows travel in fixed sizes, which statistics do not
  // count.
  absl::Status Launch(const moe::MoeContext& moe, Batch* batch, absl::Span<const PlainRow> rows, int64_t most_decodes);
  int under_way() const { return static_cast<int>(under_way_.size()); }
  // Whether the oldest is done.  REQUIRES: under_way() > 0.
  absl::StatusOr<bool> OldestIsDone();
  // Waits for the oldest, at most until the deadline.
  absl::StatusOr<CollectedStep> Collect(absl::Time deadline);
  // Forgets the steps under way and the recorded graphs, which have a group's collectives.
  void Clear();

  // Since this was made.
  const GraphCounters& counters() const { return counters_; }

 private:
  struct UnderWay {
    int64_t rows = 0;
    int turn = 0;
    bool all_decodes = false;   // the decoded rows' counts are the counts
    bool some_decodes = false;  // they are counted apart
    std::unique_ptr<DeviceEvent> done;
  };

  DeviceSteps(const Stream& stream, Model* model, const Limits& limits);
  // Of a recorded step.
  int64_t most_rows() const { return std::min(limits_.slots, limits_.rows); }
  // Writes upload_'s arrays of requests_.
  void TakeSampling(absl::Span<const PlainRow> rows, int64_t padded_rows);
  // Enqueues or records tokens, forward pass and sampling.
  absl::Status Enqueue(const moe::MoeContext& moe, Batch* batch);
  absl::Status LaunchDecodes(moe::MoeContext moe, Batch* batch, absl::Span<const PlainRow> rows, int64_t bucket);
  absl::Status Replay(const moe::MoeContext& moe, Batch* batch, int64_t bucket);
  // Records the step for graphs_[bucket], which stays null where a rank has no memory for it.
  absl::Status Record(const moe::MoeContext& moe, Batch* batch, int64_t bucket);
  bool HasGraph(int64_t bucket) const;
  // The size of the graph for a step of so many decodes; 0: it runs without one.
  int64_t GraphRows(int64_t most_decodes) const;
  absl::Status ReadBack(int64_t rows, int64_t num_decodes);

  const Stream stream_;
  Model* const model_;
  KvCache* cache_ = nullptr;
  const Limits limits_;
  const pipeline::MoeSchedule recorded_schedule_;  // rows are too few to be cut
  BatchUpload batch_;
  IntUpload upload_;
  ops::PlainSampling requests_;               // of the step launched last
  Tensor resolved_;                           // [rows] tokens of the batch
  Tensor tokens_;                             // [slots] sampled
  Tensor last_;                               // [slots] by slot
  TensorView expert_counts_, decode_counts_;  // of the step launched last
  PinnedBuffer results_[kMaxUnderWay];        // tokens, then expert counts, then the decoded rows'
  int next_turn_ = 0;
  std::deque<UnderWay> under_way_;
  std::map<int64_t, std::unique_ptr<DeviceGraph>> graphs_;  // by rows; null: to be captured next time
  int64_t too_large_ = kMaxGraphRows + 1;                   // from so many rows on no more graphs are captured
  GraphCounters counters_;
};

}  // namespace switchyard::model
