#include "tests/bench/training/critical_path.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/simulator/event_simulator.h"
#include "scheduler/simulator/program_costs.h"

namespace switchyard::bench {
namespace {

using simulator::SimOp;
using simulator::SimOpKind;

// The step as the simulator takes it: one rank and one link, of which a second carries a second's messages.
class Path {
 public:
  explicit Path(const PathInput& input) : input_(input) {
    sim_.links = {1};
    sim_.rules = {.weights = {1, 1}, .strict = true};
    sim_.ranks.resize(1);
  }

  CriticalPath Find() {
    for (int i = 0; i < input_.layers; ++i) {
      Compute(input_.attention);
      Layer(input_.schedule->forward);
    }
    Sum(input_.head_sums);
    std::pair<size_t, size_t> lowest;  // layer's ops
    for (int i = input_.layers - 1; i >= 0; --i) {
      lowest = Layer(input_.schedule->backward);
      Sum(input_.feed_forward_sums[static_cast<size_t>(i)]);
      Compute(input_.attention * kBackwardOverForward / 2);
      Sum(input_.attention_out_sums[static_cast<size_t>(i)]);
      Compute(input_.attention * kBackwardOverForward / 2);
      Sum(input_.attention_in_sums[static_cast<size_t>(i)]);
    }
    Sum(input_.embedding_sums);
    const absl::StatusOr<simulator::SimResult> result = simulator::Simulate(sim_);
    SY_CHECK_OK(result.status());
    const std::vector<simulator::SimInterval>& ops = result->ops[0];
    double begin = result->seconds, end = 0;
    for (size_t i = lowest.first; i < lowest.second; ++i) {
      begin = std::min(begin, ops[i].begin);
      end = std::max(end, ops[i].end);
    }
    return {.step = absl::Seconds(result->seconds), .compute = compute_, .moe_backward = absl::Seconds(end - begin)};
  }

 private:
  std::vector<SimOp>& ops() { return sim_.ranks[0]; }

  // What follows a layer waits for all of it.
  void Add(SimOp op) {
    op.deps.insert(op.deps.end(), layer_.begin(), layer_.end());
    ops().push_back(std::move(op));
  }

  void Compute(absl::Duration time) {
    compute_ += time;
    Add({.seconds = absl::ToDoubleSeconds(time)});
  }

  void Communicate(absl::Duration time, int traffic_class, std::vector<int> deps = {}) {
    if (time <= absl::ZeroDuration()) return Add({.deps = std::move(deps)});
    const int collective = static_cast<int>(sim_.collectives.size());
    sim_.collectives.push_back({.uses = {{.link = 0, .bytes = absl::ToDoubleSeconds(time)}},
                                .queue = traffic_class,
                                .traffic_class = traffic_class});
    Add({.kind = SimOpKind::kCollective, .collective = collective, .deps = std::move(deps)});
  }

  void Sum(absl::Duration time) { Communicate(time, 1); }

  std::pair<size_t, size_t> Layer(const std::vector<pipeline::MicroOp>& layer) {
    const size_t begin = ops().size();
    std::vector<int> all;
    for (const pipeline::MicroOp& op : layer) {
      std::vector<int> deps;
      for (const int dep : op.deps) deps.push_back(static_cast<int>(begin) + dep);
      all.push_back(static_cast<int>(ops().size()));
      if (pipeline::IsCommunicating(op.kind)) {
        Communicate(input_.all_to_all / input_.schedule->num_chunks, 0, std::move(deps));
        continue;
      }
      const absl::Duration time = input_.experts * simulator::ExpertProducts(op) / input_.schedule->num_chunks;
      compute_ += time;
      Add({.seconds = absl::ToDoubleSeconds(time), .deps = std::move(deps)});
    }
    layer_ = std::move(all);
    return {begin, ops().size()};
  }

  const PathInput& input_;
  simulator::SimInput sim_;
  absl::Duration compute_;
  std::vector<int> layer_;  // ops of the last one
};

}  // namespace

CriticalPath FindCriticalPath(const PathInput& input) { return Path(input).Find(); }

}  // namespace switchyard::bench
