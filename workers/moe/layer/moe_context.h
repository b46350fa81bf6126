// MoeContext: the MoE layers of one step; LayerContext: one of these layers.
//
// The caller of a step makes one MoeContext and passes it down; model, layers, exchanges, load balancers, load
// predictors and experts change only its statistics.  The model makes a LayerContext for each layer, which fills in the
// rest as it runs.  Plain data; everything is borrowed.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/placement/expert_cost.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/communicator.h"
#include "workers/moe/dispatch/expert_layout.h"
#include "workers/moe/dispatch/token_dispatcher.h"
#include "workers/moe/layer/expert_capacity.h"
#include "workers/moe/layer/moe_stats.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
class Stream;
}  // namespace switchyard

namespace switchyard::moe {

class ActivationOffload;
class AllToAllWatch;
class LayerLoadPredictor;
class PerStepBalancer;
class SplitCursor;
struct MoeSaved;
struct MoeScratch;
struct StandingExperts;

// Of programs that name other groups than that of the experts (pipeline::Group).  Ranks of `copies` have the same rows,
// ranks of `shards` hold shards of the same experts.  Null where the program does not name it.
struct LayerGroups {
  comm::Communicator* shards = nullptr;
  comm::Communicator* copies = nullptr;
  absl::Span<const int32_t> copy_ranks =
      {};  // of MoeContext::comm, those of `copies`; where the program gathers choices
  // Shards of an expert that MoeContext::comm reaches (Group::kAllExperts): its layout has shard s of expert e as
  // e * num_shards + s.
  int num_shards = 1;
};

// The same on every rank, except stream, stats, balancer and load_predictor.
struct MoeContext {
  const Stream* stream = nullptr;
  comm::Communicator* comm = nullptr;  // that of dispatches: ranks that hold experts or shards of them
  LayerGroups groups = {};
  const ExpertLayout* layout = nullptr;             // layout->num_ranks() == comm->world()
  const pipeline::MoeSchedule* schedule = nullptr;  // what each layer does
  absl::Time deadline = absl::InfiniteFuture();
  MoeStats* stats = nullptr;  // added to; not null
  // Decides where rows go, layer by layer; null: the layout does.  On a device the host then waits for each gate, so a
  // step that decides cannot be recorded.
  PerStepBalancer* balancer = nullptr;
  // Observes each gate and forecasts for the load balancer and the experts; may be null.  Not asked where a schedule
  // gates its rows in parts.
  LayerLoadPredictor* load_predictor = nullptr;
  AllToAllWatch* watch = nullptr;        // observes the layers' all-to-alls; may be null
  MoeScratch* scratch = nullptr;         // that layers share, forward and backward; null: each executor has its own
  ActivationOffload* offload = nullptr;  // of programs that save and restore; may be null
  // On hosts, where nothing is saved: a rank adds its experts' outputs of a row before they travel, which changes bits
  // (added_outputs.h).
  bool add_outputs = false;
  // On the CPU: experts' products take at least so long, as on another machine (benchmarks).
  placement::ExpertCost pace = {};
  // Drops choices without room before rows are placed.  On the CPU, where all rows are gated at once.
  ExpertCapacity capacity = {};
  ExchangeMode exchange = ExchangeMode::kExact;
  int64_t max_rows = 0;  // of kPadded: no rank has more rows in this step, padding included
  // This step is or may be recorded: its layers have scratch of their own.  A step of more rows than were reserved for
  // grows it, which invalidates recorded graphs.
  bool recorded = false;

  int num_experts() const { return layout->num_experts() / groups.num_shards; }  // E of the router

  // A collective of a layer's part, as a chunk.
  comm::CommCall Call(comm::CallUse use, int64_t layer, int64_t part = 0) const {
    return {.stream = stream, .deadline = deadline, .tag = comm::CallTag(use, layer, part)};
  }
};

struct LayerContext {
  int index = 0;                  // among the model's MoE layers
  TensorView expert_counts = {};  // [E] int32 on the stream's device, added to: this rank's rows; rank 0 = not wanted
  // The same of the first num_decode_rows rows alone; rank 0 = not wanted.
  TensorView decode_counts = {};
  int64_t num_decode_rows = 0;
  const int32_t* num_rows = nullptr;  // on a device: rows from *num_rows on are padding; null = none are
  // Receives what the layer's backward needs; may be null.  Unimplemented except on the CPU with kExact, without
  // load balancer, load predictor and MoeLayerWeights::experts.
  MoeSaved* saved = nullptr;

  // The layer fills in the rest, first its gate's results for all of this rank's rows:
  TensorView x = {};             // [T, H] model dtype: what goes to the experts
  TensorView logits = {};        // [T, E] AccDType, the router's
  TensorView topk_idx = {};      // [T, K] int32, -1 = dropped
  TensorView topk_weight = {};   // [T, K] AccDType
  TensorView topk_on_host = {};  // the same on the host, for load balancer and load predictor
  // The load predictor's forecasts of this rank's rows for coming layers, nearest first; may be empty.
  absl::Span<const placement::LayerEstimate> estimates = {};
  const ExpertLayout* layout = nullptr;  // where its experts are
  // Decides a row's replica; on a host the layer's exchanges advance it in order.  Null: the layout's rule.
  SplitCursor* split = nullptr;
  const StandingExperts* standing = nullptr;  // this rank's; null: as MoeLayerWeights has them
  // Which of its rows the present call is about: of those that this rank sends, chunk `chunk`; of a combine, part
  // `part`.
  int chunk = 0, num_chunks = 1;
  int part = 0, num_parts = 1;
  pipeline::Cut cut = pipeline::Cut::kRows;
  pipeline::ChunkRange sent = {.begin = 0, .count = -1};  // -1: all
  bool stays = false;                                     // only experts that are here get rows (Group::kSelf)

  void PointTo(const pipeline::MicroOp& op) {
    chunk = op.chunk;
    num_chunks = op.num_chunks;
    part = op.part;
    num_parts = op.num_parts;
  }
  pipeline::ChunkRange rows() const {
    const pipeline::ChunkRange all = {sent.begin, sent.count < 0 ? x.dim(0) : sent.count};
    if (cut == pipeline::Cut::kPeers) return all;
    const pipeline::ChunkRange of_chunk = pipeline::RowsOfChunk(all.count, chunk, num_chunks);
    return {all.begin + of_chunk.begin, of_chunk.count};
  }
};

}  // namespace switchyard::moe
