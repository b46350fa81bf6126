#include "scheduler/simulator/served_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

using pipeline::MicroOp;
using pipeline::MicroOpKind;

double ServedLayer::DispatchedRows(double rows) const {
  // A row goes once to each rank that has one of its experts.
  const double here = static_cast<double>(num_experts) / ranks;
  double none = 1;  // of its choices
  for (int k = 0; k < top_k; ++k) none *= std::max(0.0, 1 - here / std::max(num_experts - k, 1));
  return rows * (ranks - 1) * (1 - none);
}

double ServedLayer::ReturnedRows(double rows) const {
  return adds_outputs ? DispatchedRows(rows) : rows * top_k * (ranks - 1) / ranks;
}

double SecondsOfServedLayer(const ServedLayer& layer, int64_t rows, int micro_batches) {
  SY_CHECK(layer.links.measured());
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = micro_batches});
  const double of_chunk = static_cast<double>(rows) / micro_batches;
  const double experts = static_cast<double>(layer.num_experts) / layer.ranks;
  // Experts here get the choices of all ranks' rows, an even share each.
  const auto of_expert = static_cast<int64_t>(std::ceil(of_chunk * layer.top_k / experts));
  SimInput input = {.links = {layer.links.bytes_per_second}, .ranks = {{}}};
  for (const MicroOp& op : schedule.forward) {
    SimOp sim = {.deps = op.deps};
    if (op.kind == MicroOpKind::kExpert) sim.seconds = experts * layer.expert.Of(of_expert);
    if (pipeline::IsCommunicating(op.kind)) {
      const bool out = op.kind == MicroOpKind::kDispatch;
      const double sent = out ? layer.DispatchedRows(of_chunk) : layer.ReturnedRows(of_chunk);
      Collective collective = {.latency = layer.links.start_seconds};
      const double bytes = sent * static_cast<double>(layer.row_bytes);
      if (bytes > 0) collective.uses.push_back({.link = 0, .bytes = bytes});
      sim.kind = SimOpKind::kCollective;
      sim.collective = static_cast<int>(input.collectives.size());
      input.collectives.push_back(std::move(collective));
    }
    input.ranks[0].push_back(std::move(sim));
  }
  const absl::StatusOr<SimResult> result = Simulate(input);
  SY_CHECK_OK(result.status());
  return result->seconds;
}

}  // namespace switchyard::simulator
