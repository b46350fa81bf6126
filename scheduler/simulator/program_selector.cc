#include "scheduler/simulator/program_selector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/build_parm.h"
#include "scheduler/pipeline/build_sliced.h"
#include "scheduler/simulator/event_simulator.h"

namespace switchyard::simulator {

using pipeline::BuildExpertParallel;
using pipeline::BuildParm;
using pipeline::BuildSliced;
using pipeline::ParmKind;

std::vector<ProgramOption> ProgramOptions(int ranks, const MoeMesh& mesh) {
  std::vector<ProgramOption> options;
  const auto add = [&](std::string name, pipeline::MoeSchedule schedule) {
    options.push_back({.name = std::move(name), .schedule = std::move(schedule)});
  };
  if (mesh.shards == 1 && mesh.copies == 1) {
    for (const int n : {1, 2, 4, 8})
      add(absl::StrCat("ep:", n), BuildExpertParallel({.micro_batches = n, .trains = true}));
    for (int n = 2; n <= ranks / 2; n *= 2) {
      if (ranks % n != 0) continue;
      add(absl::StrCat("ep:", n, ":turn:peers"),
          BuildExpertParallel({.micro_batches = n, .in_turn = true, .cut = pipeline::Cut::kPeers, .trains = true}));
    }
    return options;
  }
  const std::string groups = absl::StrCat("@", mesh.shards, "x", mesh.copies);
  add("parm:baseline" + groups, BuildParm({.trains = true}));
  add("parm:s1" + groups, BuildParm({.kind = ParmKind::kS1, .trains = true}));
  add("parm:s2" + groups, BuildParm({.kind = ParmKind::kS2, .trains = true}));
  const int parts = std::min(ranks, pipeline::kMaxParts);
  add(absl::StrCat("parm:s2:", parts, groups), BuildParm({.kind = ParmKind::kS2, .parts = parts, .trains = true}));
  if (mesh.shards > 1) return options;
  add("sliced:sum" + groups, BuildSliced({.sums = true, .trains = true}));
  add("sliced:gather" + groups, BuildSliced({.trains = true}));
  return options;
}

absl::StatusOr<std::vector<ProgramOption>> SelectProgram(const Cluster& cluster, const MoeMesh& mesh,
                                                         const MoeLayerShape& shape,
                                                         std::vector<ProgramOption> options) {
  for (ProgramOption& option : options) {
    for (const pipeline::Pass pass : {pipeline::Pass::kForward, pipeline::Pass::kBackward}) {
      ASSIGN_OR_RETURN(const SimInput input, InputOfLayer(cluster, mesh, shape, option.schedule, pass));
      ASSIGN_OR_RETURN(const SimResult result, Simulate(input));
      (pass == pipeline::Pass::kForward ? option.forward_s : option.backward_s) = result.seconds;
    }
  }
  std::stable_sort(options.begin(), options.end(), [](const ProgramOption& a, const ProgramOption& b) {
    return a.forward_s + a.backward_s < b.forward_s + b.backward_s;
  });
  return options;
}

}  // namespace switchyard::simulator
