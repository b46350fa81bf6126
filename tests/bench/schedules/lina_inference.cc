#include "tests/bench/schedules/lina_inference.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::bench {
namespace {

using placement::LayerDecision;
using placement::PlacementMode;
using simulator::Collective;
using simulator::SimInterval;
using simulator::SimOp;
using simulator::SimOpKind;

// A batch as events.
class BatchEvents {
 public:
  explicit BatchEvents(const LinaSetup& setup) : setup_(setup) {
    input_.links = simulator::LinksOf(setup.cluster);
    input_.ranks.resize(Gpus());
    for (size_t gpu = 0; gpu < Gpus(); ++gpu) all_.push_back(static_cast<int>(gpu));
    ready_.assign(Gpus(), -1);
  }

  void AddAttention() {
    marks_.emplace_back(Gpus());
    for (size_t gpu = 0; gpu < Gpus(); ++gpu)
      marks_.back()[gpu].dense = ready_[gpu] =
          Push(gpu, {.kind = SimOpKind::kCompute, .seconds = setup_.dense_seconds}, {ready_[gpu]});
  }

  // Everybody waits for device 0.
  void AddPhaseTwo(double seconds) { ready_ = AddToAll({.latency = seconds, .queue = 1}, ready_); }

  // sent [R, R] rows; late: those of each GPU that wait for `copies`, ops of its list.
  void AddExchanges(const std::vector<double>& sent, const std::vector<double>& late,
                    const std::vector<std::vector<int>>& copies, double phase_one_seconds) {
    const auto rows = [&](int from, int to) { return sent[static_cast<size_t>(from) * Gpus() + to]; };
    const auto bytes = [&](int from, int to) { return setup_.row_bytes * rows(from, to); };
    for (size_t gpu = 0; gpu < Gpus(); ++gpu) marks_.back()[gpu].gated = ready_[gpu];
    const std::vector<int> dispatched = AddToAll(AllToAll(setup_.cluster, all_, bytes), ready_);
    placed_ = phase_one_seconds > 0 ? AddToAll({.latency = phase_one_seconds, .queue = 1}, dispatched) : dispatched;
    for (size_t gpu = 0; gpu < Gpus(); ++gpu) {
      double here = -late[gpu];
      for (const int from : all_) here += rows(from, static_cast<int>(gpu));
      ready_[gpu] = Push(gpu, {.kind = SimOpKind::kCompute, .seconds = here * setup_.row_seconds}, {dispatched[gpu]});
      if (late[gpu] > 0) {
        std::vector<int> deps = copies[gpu];
        ready_[gpu] = Push(gpu, {.kind = SimOpKind::kCompute, .seconds = late[gpu] * setup_.row_seconds}, deps);
      }
      marks_.back()[gpu].dispatched = dispatched[gpu];
      marks_.back()[gpu].computed = ready_[gpu];
    }
    ready_ = AddToAll(AllToAll(setup_.cluster, all_, [&](int from, int to) { return bytes(to, from); }), ready_);
    for (size_t gpu = 0; gpu < Gpus(); ++gpu) marks_.back()[gpu].combined = ready_[gpu];
  }

  // Of the layer at hand, or, behind phase 1, of the next one.
  int AddCopy(size_t gpu, bool of_phase_one) {
    std::vector<int> deps = {ready_[gpu]};
    if (of_phase_one) deps.push_back(placed_[gpu]);
    return Push(gpu, {.kind = SimOpKind::kCopy, .seconds = setup_.copy_seconds}, deps);
  }

  absl::StatusOr<LinaBatch> Simulated() const {
    ASSIGN_OR_RETURN(const simulator::SimResult result, simulator::Simulate(input_));
    LinaBatch batch = {.seconds = 0, .layers = {}};
    for (const std::vector<Marks>& layer : marks_) {
      LinaLayerTimes times;
      double begin = std::numeric_limits<double>::infinity();
      for (size_t gpu = 0; gpu < Gpus(); ++gpu) {
        const auto end = [&](int op) { return result.ops[gpu][static_cast<size_t>(op)].end; };
        const Marks& marks = layer[gpu];
        begin = std::min(begin, end(marks.dense));
        batch.seconds = end(marks.combined);
        times.exchange_seconds +=
            (end(marks.dispatched) - end(marks.gated) + end(marks.combined) - end(marks.computed)) /
            static_cast<double>(Gpus());
      }
      times.seconds = batch.seconds - begin;
      batch.layers.push_back(times);
    }
    return batch;
  }

 private:
  // A GPU's ops of one layer.
  struct Marks {
    int dense = 0, gated = 0, dispatched = 0, computed = 0, combined = 0;
  };

  size_t Gpus() const { return static_cast<size_t>(setup_.cluster.ranks); }

  int Push(size_t gpu, SimOp op, const std::vector<int>& deps) {
    for (const int dep : deps) {
      if (dep >= 0) op.deps.push_back(dep);
    }
    input_.ranks[gpu].push_back(std::move(op));
    return static_cast<int>(input_.ranks[gpu].size()) - 1;
  }
  std::vector<int> AddToAll(Collective collective, const std::vector<int>& after) {
    std::vector<int> ops(Gpus());
    for (size_t gpu = 0; gpu < Gpus(); ++gpu)
      ops[gpu] = Push(gpu, {.kind = SimOpKind::kCollective, .collective = static_cast<int>(input_.collectives.size())},
                      {after[gpu]});
    input_.collectives.push_back(std::move(collective));
    return ops;
  }

  const LinaSetup& setup_;
  simulator::SimInput input_;
  std::vector<int> all_;                   // GPUs
  std::vector<int> ready_;                 // by GPU, the op that what comes next waits for
  std::vector<int> placed_;                // likewise, of phase 1
  std::vector<std::vector<Marks>> marks_;  // by layer and GPU
};

// Rows from each GPU to each, [R, R].
std::vector<double> RowsOf(const LayerDecision& decision) {
  const auto gpus = static_cast<size_t>(decision.split.num_ranks());
  std::vector<double> rows(gpus * gpus);
  for (size_t from = 0; from < gpus; ++from) {
    for (int expert = 0; expert < decision.split.num_experts(); ++expert) {
      for (const placement::SplitPiece& piece : decision.split.Pieces(static_cast<int>(from), expert))
        rows[from * gpus + static_cast<size_t>(piece.device)] += piece.rows;
    }
  }
  return rows;
}

// The gate is forced to be balanced.
std::vector<double> EqualRows(const placement::RowCounts& counts) {
  const auto gpus = static_cast<size_t>(counts.num_ranks);
  std::vector<double> rows(gpus * gpus);
  for (size_t from = 0; from < gpus; ++from) {
    double own = 0;
    for (int expert = 0; expert < counts.num_experts; ++expert) own += counts.At(static_cast<int>(from), expert);
    std::fill_n(rows.begin() + static_cast<int64_t>(from * gpus), gpus, own / static_cast<double>(gpus));
  }
  return rows;
}

}  // namespace

absl::StatusOr<LinaInference> LinaInference::Create(const LinaSetup& setup, PlacementMode mode) {
  const bool places = placement::IsPaper(mode);
  if (!places && mode != PlacementMode::kStatic && mode != PlacementMode::kIdeal)
    return absl::InvalidArgumentError(absl::StrCat("Lina's inference: mode ", placement::NameOf(mode)));
  const int gpus = setup.cluster.ranks, experts = setup.shape.num_experts;
  placement::PolicyShape shape;
  shape.mode = mode;
  shape.top_k = setup.shape.top_k;
  const int own = (experts + gpus - 1) / gpus;
  shape.residents.assign(static_cast<size_t>(setup.shape.num_layers),
                         placement::ContiguousPlacement(experts, gpus, places ? std::max(0, setup.slots - own) : 0));
  LinaInference inference;
  inference.setup_ = setup;
  inference.mode_ = mode;
  ASSIGN_OR_RETURN(inference.policy_, placement::MakePlacementPolicy(std::move(shape)));
  return inference;
}

absl::StatusOr<LinaBatch> LinaInference::Run(const std::vector<LinaLayerPlan>& plan) {
  const int gpus = setup_.cluster.ranks;
  BatchEvents events(setup_);
  std::map<std::tuple<int, int, int, int64_t>, int> copies;  // ops, by layer, GPU, slot and decision
  const auto start = [&](const placement::SlotPlan& slots, int64_t number, bool of_phase_one) {
    for (const placement::SlotChange& change : slots.changes) {
      if (change.expert == placement::kEmptySlot) continue;
      copies[{slots.layer, change.device, change.slot, number}] =
          events.AddCopy(static_cast<size_t>(change.device), of_phase_one);
    }
  };
  ++step_;
  for (int layer = 0; layer < static_cast<int>(plan.size()); ++layer) {
    const LinaLayerPlan& at = plan[static_cast<size_t>(layer)];
    const placement::RowCounts counts = {.num_ranks = gpus, .num_experts = setup_.shape.num_experts, .rows = at.counts};
    placement::LayerEstimate next;
    placement::LayerInputs inputs{.step = step_, .layer = layer, .counts = counts, .estimates = {}};
    if (static_cast<size_t>(layer) + 1 < plan.size() && !plan[static_cast<size_t>(layer) + 1].estimate.empty()) {
      next = {.layer = layer + 1, .popularity = plan[static_cast<size_t>(layer) + 1].estimate};
      inputs.estimates = absl::MakeConstSpan(&next, 1);
    }
    const LayerDecision decision = policy_->Decide(inputs);
    events.AddAttention();
    if (mode_ == PlacementMode::kNoEstimate) events.AddPhaseTwo(setup_.place_seconds);
    if (mode_ == PlacementMode::kLina && !at.estimate.empty()) {
      const bool same = popularity::SameTopExperts(at.estimate, counts.OfExperts(), 2 * setup_.shape.top_k);
      events.AddPhaseTwo(same ? setup_.check_seconds : setup_.place_seconds);
    }
    start(decision.demand, decision.number, false);
    const std::vector<double> rows = mode_ == PlacementMode::kIdeal ? EqualRows(counts) : RowsOf(decision);
    std::vector<double> late(static_cast<size_t>(gpus));
    std::vector<std::vector<int>> awaited(static_cast<size_t>(gpus));
    for (const placement::AwaitedCopy& copy : decision.awaited) {
      // (One that an earlier batch ordered arrived long ago.)
      const auto op = copies.find({layer, copy.device, copy.slot, copy.decision});
      if (op == copies.end()) continue;
      const auto gpu = static_cast<size_t>(copy.device);
      awaited[gpu].push_back(op->second);
      const int expert = policy_->table(layer).placement().slots[gpu][static_cast<size_t>(copy.slot)];
      for (int from = 0; from < gpus; ++from) {
        for (const placement::SplitPiece& piece : decision.split.Pieces(from, expert))
          late[gpu] += piece.device == copy.device ? piece.rows : 0;
      }
    }
    const bool prepares = !inputs.estimates.empty() && placement::UsesEstimates(mode_);
    events.AddExchanges(rows, late, awaited, prepares ? setup_.place_seconds : 0);
    for (const placement::SlotPlan& slots : decision.prefetch) start(slots, decision.number, true);
  }
  return events.Simulated();
}

}  // namespace switchyard::bench
