#include "tests/bench/placement/placement_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::bench {
namespace {

bool Gathers(PlacementMode mode) {
  return mode == PlacementMode::kAgreed || mode == PlacementMode::kOracle || mode == PlacementMode::kStaticSpare;
}
bool AsksDeviceZero(PlacementMode mode) {
  return mode == PlacementMode::kCentral || mode == PlacementMode::kNoEstimate || mode == PlacementMode::kNoFinetune;
}

// Experts by number, and slots that the policy may fill.
Placement ResidentsOf(const RunOptions& options, int num_experts, int num_devices) {
  const bool spare = options.mode != PlacementMode::kStatic && options.mode != PlacementMode::kIdeal;
  return ContiguousPlacement(num_experts, num_devices, spare ? options.spare_slots : 0);
}

}  // namespace

PlacementRun::PlacementRun(const RunOptions& options, const BatchPlan* plan, Communicator* comm)
    : options_(options), plan_(plan), comm_(comm), layer_(comm, options.layer) {}

absl::StatusOr<std::unique_ptr<PlacementRun>> PlacementRun::Create(const RunOptions& options, const BatchPlan* plan,
                                                                   Communicator* comm) {
  SY_CHECK_EQ(plan->num_ranks, comm->world());
  std::unique_ptr<PlacementRun> run(new PlacementRun(options, plan, comm));
  RETURN_IF_ERROR(run->MakePolicy());
  return run;
}

absl::Status PlacementRun::MakePolicy() {
  PolicyShape shape;
  shape.mode = options_.mode;
  shape.top_k = plan_->shape.top_k;
  shape.residents.assign(plan_->batches[0].size(), ResidentsOf(options_, plan_->shape.num_experts, comm_->world()));
  shape.costs = options_.costs;
  ASSIGN_OR_RETURN(policy_, MakePlacementPolicy(std::move(shape)));
  return absl::OkStatus();
}

LayerDecision PlacementRun::Decide(int batch, int layer) {
  const std::vector<PlannedLayer>& layers = plan_->batches[static_cast<size_t>(batch)];
  LayerInputs inputs{.step = step_, .layer = layer, .counts = plan_->CountsOf(layers[layer]), .estimates = {}};
  LayerEstimate next;
  Popularity truth;
  if (layer + 1 < static_cast<int>(layers.size())) {
    next = {.layer = layer + 1, .popularity = layers[layer + 1].estimate};
    if (options_.mode == PlacementMode::kOracle) {
      truth = FromCounts(plan_->CountsOf(layers[layer + 1]).OfExperts());
      next.popularity = truth;
    }
    if (!next.popularity.empty()) inputs.estimates = absl::MakeConstSpan(&next, 1);
  }
  return policy_->Decide(inputs);
}

absl::StatusOr<double> PlacementRun::MeasureDecision() {
  constexpr int kBatches = 20;
  std::vector<double> seconds;
  for (int b = 0; b < std::min<int>(kBatches, static_cast<int>(plan_->batches.size())); ++b) {
    for (int layer = 0; layer < static_cast<int>(plan_->batches[0].size()); ++layer) {
      const absl::Time begin = absl::Now();
      Decide(b, layer);
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
  }
  RETURN_IF_ERROR(MakePolicy());
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

absl::Status PlacementRun::Gather(int64_t bytes) {
  const std::string mine(static_cast<size_t>(bytes), '\0');
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, comm_->AllGather({.deadline = Soon()}, mine));
  return work->Wait();
}

// Counts to device 0, which thinks; its answer to all.
absl::Status PlacementRun::AskDeviceZero() {
  const int64_t counts = 4 * plan_->shape.num_experts;
  // "Resume", or where each expert is and how many rows each replica takes.
  const int64_t answer = 16 * plan_->shape.num_experts;
  std::vector<Message> out(static_cast<size_t>(comm_->world()));
  if (comm_->rank() != 0) out[0] = comm_->NewMessage(counts);
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, comm_->AllToAllV({.deadline = Soon()}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  if (comm_->rank() == 0) SleepUntil(absl::Now() + absl::Seconds(decide_seconds_ * options_.policy_scale));
  const std::string mapping(static_cast<size_t>(answer), '\0');
  ASSIGN_OR_RETURN(work,
                   comm_->Broadcast({.comm_class = CommClass::kAllToAll, .deadline = Soon()}, 0, answer, mapping));
  return work->Wait();
}

absl::Status PlacementRun::TellAndDecide(int batch, int layer, LayerDecision* decision) {
  const int64_t experts = plan_->shape.num_experts;
  if (Gathers(options_.mode)) {
    const bool estimates = options_.mode != PlacementMode::kStaticSpare;
    RETURN_IF_ERROR(Gather(4 * experts + (estimates ? 8 * experts + 8 : 0)));
  }
  *decision = Decide(batch, layer);
  if (Gathers(options_.mode)) SleepUntil(absl::Now() + absl::Seconds(decide_seconds_ * options_.policy_scale));
  return AsksDeviceZero(options_.mode) ? AskDeviceZero() : absl::OkStatus();
}

LayerRows PlacementRun::RowsOf(const LayerDecision& decision) const {
  const int world = comm_->world(), me = comm_->rank();
  LayerRows rows;
  rows.sent.resize(static_cast<size_t>(world));
  rows.received.resize(static_cast<size_t>(world));
  for (int expert = 0; expert < plan_->shape.num_experts; ++expert) {
    for (int rank = 0; rank < world; ++rank) {
      for (const SplitPiece& piece : decision.split.Pieces(rank, expert)) {
        if (rank == me) rows.sent[piece.device] += piece.rows;
        if (piece.device == me) rows.received[rank] += piece.rows;
      }
    }
  }
  return rows;
}

// Every rank's rows in equal parts over all.
LayerRows PlacementRun::BalancedRows(const PlannedLayer& layer) const {
  const int world = comm_->world(), me = comm_->rank();
  const RowCounts counts = plan_->CountsOf(layer);
  LayerRows rows;
  rows.sent.resize(static_cast<size_t>(world));
  rows.received.resize(static_cast<size_t>(world));
  const auto part = [&](int from, int to) {
    int64_t total = 0;
    for (int expert = 0; expert < counts.num_experts; ++expert) total += counts.At(from, expert);
    // What does not divide goes around, beginning with the next rank.
    return total / world + ((to - from + world) % world <= total % world && to != from ? 1 : 0);
  };
  for (int rank = 0; rank < world; ++rank) {
    rows.sent[rank] = part(me, rank);
    rows.received[rank] = part(rank, me);
  }
  return rows;
}

void PlacementRun::StartCopies(const SlotPlan& slots, int64_t number) {
  for (const SlotChange& change : slots.changes) {
    if (change.device != comm_->rank() || change.expert == kEmptySlot) continue;
    engine_free_ = std::max(engine_free_, absl::Now()) + options_.copy;
    copy_ends_[{slots.layer, change.slot, number}] = engine_free_;
    ++copies_;
  }
}

absl::Time PlacementRun::WhenReady(const LayerDecision& decision) {
  absl::Time ready = absl::InfinitePast();
  for (const AwaitedCopy& copy : decision.awaited) {
    if (copy.device != comm_->rank()) continue;
    const auto end = copy_ends_.find({decision.layer, copy.slot, copy.decision});
    SY_CHECK(end != copy_ends_.end());
    ready = std::max(ready, end->second);
  }
  return ready;
}

absl::StatusOr<RunResult> PlacementRun::RunBatch(int batch) {
  RunResult result;
  ++step_;
  copies_ = 0;
  ASSIGN_OR_RETURN(auto barrier, comm_->Barrier({.comm_class = CommClass::kAllToAll, .deadline = Soon()}));
  RETURN_IF_ERROR(barrier->Wait());
  const absl::Time batch_begin = absl::Now();
  const std::vector<PlannedLayer>& layers = plan_->batches[static_cast<size_t>(batch)];
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    SleepUntil(absl::Now() + options_.dense);
    const absl::Time begin = absl::Now();
    LayerDecision decision;
    RETURN_IF_ERROR(TellAndDecide(batch, layer, &decision));
    StartCopies(decision.demand, decision.number);
    // (The paper's mapping for the next layer comes with the combine.)
    const bool central = AsksDeviceZero(options_.mode);
    if (!central) {
      for (const SlotPlan& slots : decision.prefetch) StartCopies(slots, decision.number);
    }
    LayerRows rows = options_.mode == PlacementMode::kIdeal ? BalancedRows(layers[layer]) : RowsOf(decision);
    rows.weights_ready = WhenReady(decision);
    RETURN_IF_ERROR(layer_.Run(rows));
    if (central) {
      for (const SlotPlan& slots : decision.prefetch) StartCopies(slots, decision.number);
    }
    result.layer_seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    if (!decision.demand.changes.empty()) ++result.fine_tuned;
  }
  result.batch_seconds = absl::ToDoubleSeconds(absl::Now() - batch_begin);
  result.copies = copies_;
  return result;
}

}  // namespace switchyard::bench
