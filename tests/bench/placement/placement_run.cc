#include "tests/bench/placement/placement_run.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/sleep_until.h"
#include "workers/comm/core/timed.h"
#include "workers/moe/placement/decision_gather.h"

namespace switchyard::bench {
namespace {

bool Gathers(placement::PlacementMode mode) {
  return mode == placement::PlacementMode::kAgreed || mode == placement::PlacementMode::kStaticSpare;
}
bool AsksDeviceZero(placement::PlacementMode mode) {
  return mode == placement::PlacementMode::kLina || mode == placement::PlacementMode::kNoEstimate ||
         mode == placement::PlacementMode::kNoFinetune;
}

// Experts by number, and slots that the policy may fill.
placement::Placement ResidentsOf(const RunOptions& options, int num_experts, int num_devices) {
  const bool spare =
      options.mode != placement::PlacementMode::kStatic && options.mode != placement::PlacementMode::kIdeal;
  return placement::ContiguousPlacement(num_experts, num_devices, spare ? options.spare_slots : 0);
}

}  // namespace

PlacementRun::PlacementRun(const RunOptions& options, const BatchPlan* plan, LinkMesh* mesh)
    : options_(options),
      plan_(plan),
      mesh_(mesh),
      gather_bytes_(moe::DecisionGather(1, plan->shape.num_experts, /*estimates=*/false).message_bytes()),
      layer_(mesh, options.layer) {}

absl::StatusOr<std::unique_ptr<PlacementRun>> PlacementRun::Create(const RunOptions& options, const BatchPlan* plan,
                                                                   LinkMesh* mesh) {
  SY_CHECK_EQ(plan->num_ranks, mesh->world());
  std::unique_ptr<PlacementRun> run(new PlacementRun(options, plan, mesh));
  RETURN_IF_ERROR(run->MakePolicy());
  return run;
}

absl::Status PlacementRun::MakePolicy() {
  placement::PolicyShape shape;
  shape.mode = options_.mode;
  shape.top_k = plan_->shape.top_k;
  shape.residents.assign(plan_->batches[0].size(), ResidentsOf(options_, plan_->shape.num_experts, mesh_->world()));
  shape.costs = options_.costs;
  ASSIGN_OR_RETURN(policy_, placement::MakePlacementPolicy(std::move(shape)));
  return absl::OkStatus();
}

placement::LayerDecision PlacementRun::Decide(int batch, int layer) {
  const std::vector<PlannedLayer>& layers = plan_->batches[static_cast<size_t>(batch)];
  placement::LayerInputs inputs{
      .step = step_, .layer = layer, .counts = plan_->CountsOf(layers[layer]), .estimates = {}};
  placement::LayerEstimate next;
  if (layer + 1 < static_cast<int>(layers.size())) {
    next = {.layer = layer + 1, .popularity = layers[layer + 1].estimate};
    if (!next.popularity.empty()) inputs.estimates = absl::MakeConstSpan(&next, 1);
  }
  return policy_->Decide(inputs);
}

absl::StatusOr<double> PlacementRun::MeasureDecision() {
  constexpr int kBatches = 20;
  std::vector<double> seconds;
  for (int b = 0; b < std::min<int>(kBatches, static_cast<int>(plan_->batches.size())); ++b) {
    for (int layer = 0; layer < static_cast<int>(plan_->batches[0].size()); ++layer) {
      const double begin = comm::ThreadCpuSeconds();
      Decide(b, layer);
      seconds.push_back(comm::ThreadCpuSeconds() - begin);
    }
  }
  RETURN_IF_ERROR(MakePolicy());
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void PlacementRun::Charge(double policy_seconds) const {
  SleepUntil(absl::Now() + absl::Seconds(policy_seconds * options_.policy_scale));
}

// Counts to device 0, which thinks; its answer to all.
absl::Status PlacementRun::AskDeviceZero() {
  const auto world = static_cast<size_t>(mesh_->world());
  const bool zero = mesh_->rank() == 0;
  const int64_t counts = 4 * plan_->shape.num_experts;
  // "Resume", or where each expert is and how many rows each replica takes.
  const int64_t answer = 16 * plan_->shape.num_experts;
  std::vector<int64_t> to_zero(world, 0), from_all(world, zero ? counts : 0), to_all(world, zero ? answer : 0),
      from_zero(world, 0);
  if (!zero) to_zero[0] = counts;
  if (!zero) from_zero[0] = answer;
  RETURN_IF_ERROR(mesh_->Exchange(to_zero, from_all));
  if (zero) Charge(decide_seconds_);
  return mesh_->Exchange(to_all, from_zero);
}

absl::Status PlacementRun::ReportAndDecide(int batch, int layer, placement::LayerDecision* decision) {
  if (placement::UsesEstimates(options_.mode)) Charge(estimate_seconds_);
  if (Gathers(options_.mode)) RETURN_IF_ERROR(mesh_->Gather(gather_bytes_));
  *decision = Decide(batch, layer);
  if (Gathers(options_.mode)) Charge(decide_seconds_);
  return AsksDeviceZero(options_.mode) ? AskDeviceZero() : absl::OkStatus();
}

LayerRows PlacementRun::RowsOf(const placement::LayerDecision& decision) const {
  const int world = mesh_->world(), me = mesh_->rank();
  LayerRows rows;
  rows.sent.resize(static_cast<size_t>(world));
  rows.received.resize(static_cast<size_t>(world));
  for (int expert = 0; expert < plan_->shape.num_experts; ++expert) {
    for (int rank = 0; rank < world; ++rank) {
      for (const placement::SplitPiece& piece : decision.split.Pieces(rank, expert)) {
        if (rank == me) rows.sent[piece.device] += piece.rows;
        if (piece.device == me) rows.received[rank] += piece.rows;
      }
    }
  }
  return rows;
}

void PlacementRun::NoteRows(const LayerRows& rows, RunResult* result) const {
  const int64_t stay = rows.sent[mesh_->rank()];
  const int64_t sent = std::accumulate(rows.sent.begin(), rows.sent.end(), int64_t{0}) - stay;
  const int64_t own = std::accumulate(rows.received.begin(), rows.received.end(), int64_t{0});
  result->link_rows = std::max(sent, own - stay);
  result->own_rows = own;
}

// Every rank's rows in equal parts over all.
LayerRows PlacementRun::BalancedRows(const PlannedLayer& layer) const {
  const int world = mesh_->world(), me = mesh_->rank();
  const placement::RowCounts counts = plan_->CountsOf(layer);
  LayerRows rows;
  rows.sent.resize(static_cast<size_t>(world));
  rows.received.resize(static_cast<size_t>(world));
  const auto part = [&](int from, int to) {
    int64_t total = 0;
    for (int expert = 0; expert < counts.num_experts; ++expert) total += counts.At(from, expert);
    // Rows that do not divide evenly go around, beginning with the next rank.
    return total / world + ((to - from + world) % world <= total % world && to != from ? 1 : 0);
  };
  for (int rank = 0; rank < world; ++rank) {
    rows.sent[rank] = part(me, rank);
    rows.received[rank] = part(rank, me);
  }
  return rows;
}

void PlacementRun::StartPrefetch(const placement::LayerDecision& decision) {
  for (const placement::SlotPlan& slots : decision.prefetch) StartCopies(slots, decision.number);
}

void PlacementRun::StartCopies(const placement::SlotPlan& slots, int64_t number) {
  for (const placement::SlotChange& change : slots.changes) {
    if (change.device != mesh_->rank() || change.expert == placement::kEmptySlot) continue;
    engine_free_ = std::max(engine_free_, absl::Now()) + options_.copy;
    copy_ends_[{slots.layer, change.slot, number}] = engine_free_;
    ++copies_;
  }
}

void PlacementRun::AwaitCopies(const placement::LayerDecision& decision, LayerRows* rows) const {
  const int me = mesh_->rank();
  const std::vector<int32_t>& slots = policy_->table(decision.layer).placement().slots[static_cast<size_t>(me)];
  for (const placement::AwaitedCopy& copy : decision.awaited) {
    if (copy.device != me) continue;
    const auto end = copy_ends_.find({decision.layer, copy.slot, copy.decision});
    // (One of a layer that was only decided arrived long ago.)
    if (end == copy_ends_.end() || end->second <= absl::Now()) continue;
    rows->weights_ready = std::max(rows->weights_ready, end->second);
    for (int rank = 0; rank < mesh_->world(); ++rank) {
      for (const placement::SplitPiece& piece : decision.split.Pieces(rank, slots[static_cast<size_t>(copy.slot)])) {
        if (piece.device == me) rows->late += piece.rows;
      }
    }
  }
}

void PlacementRun::SkipBatch(int batch) {
  ++step_;
  for (int layer = 0; layer < static_cast<int>(plan_->batches[0].size()); ++layer) Decide(batch, layer);
}

absl::StatusOr<RunResult> PlacementRun::RunBatch(int batch) {
  RunResult result;
  ++step_;
  copies_ = 0;
  copy_ends_.clear();  // the batch before has long ended
  const int num_layers = static_cast<int>(plan_->batches[0].size());
  const int timed = 1 + batch % (num_layers - 1);
  for (int layer = 0; layer < timed - 1; ++layer) Decide(batch, layer);
  RETURN_IF_ERROR(mesh_->Gather(1));
  const absl::Time batch_begin = absl::Now();
  engine_free_ = batch_begin;
  StartPrefetch(Decide(batch, timed - 1));
  const absl::Time gate = batch_begin + options_.dense;
  SleepUntil(gate);
  result.gate_us = absl::ToUnixMicros(gate);
  RETURN_IF_ERROR(RunLayer(batch, timed, &result));
  result.batch_seconds = absl::ToDoubleSeconds(absl::Now() - batch_begin);
  result.copies = copies_;
  for (int layer = timed + 1; layer < num_layers; ++layer) Decide(batch, layer);
  return result;
}

absl::Status PlacementRun::RunLayer(int batch, int layer, RunResult* result) {
  const absl::Time begin = absl::Now();
  placement::LayerDecision decision;
  RETURN_IF_ERROR(ReportAndDecide(batch, layer, &decision));
  result->phases.gather = absl::Now() - begin;
  StartCopies(decision.demand, decision.number);
  const PlannedLayer& planned = plan_->batches[static_cast<size_t>(batch)][static_cast<size_t>(layer)];
  LayerRows rows = options_.mode == placement::PlacementMode::kIdeal ? BalancedRows(planned) : RowsOf(decision);
  AwaitCopies(decision, &rows);
  NoteRows(rows, result);
  RETURN_IF_ERROR(layer_.Run(rows, &result->phases));
  result->end_us = absl::ToUnixMicros(absl::Now());
  result->fine_tuned = decision.demand.changes.empty() ? 0 : 1;
  return absl::OkStatus();
}

}  // namespace switchyard::bench
