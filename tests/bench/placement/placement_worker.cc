// One worker of `tests/bench/run.sh placement`: rank --rank of --world, alone in its network namespace.
//
// All workers run the same batches under each mode in turn, so that what disturbs one disturbs all.  Rank 0 writes a
// line of JSON for each (batch, mode): the layers' and the batch's times of the slowest rank, copies, fine-tuned
// layers.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/popularity/trace_file.h"
#include "scheduler/simulator/routing_chain.h"
#include "tests/bench/placement/batch_plan.h"
#include "tests/bench/placement/placement_run.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/gloo_communicator.h"

ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(int, world, 1, "");
ABSL_FLAG(std::string, address, "127.0.0.1", "of this worker in its namespace");
ABSL_FLAG(std::string, directory, "", "where the ranks find each other");
ABSL_FLAG(bool, chain, false, "chains tuned to the Lina paper's skew and pattern in place of the two traces");
ABSL_FLAG(std::string, fit, "", "trace of which profiles are made");
ABSL_FLAG(std::string, trace, "", "trace that is run");
ABSL_FLAG(std::string, estimator, "probe", "path, or a channel of the trace");
ABSL_FLAG(std::vector<std::string>, modes, {"static"}, "NAME or NAME:SLOTS, spare slots a device");
ABSL_FLAG(int, tokens, 256, "of a batch, over all ranks");
ABSL_FLAG(std::string, phase, "prefill", "prefill or decode");
ABSL_FLAG(int, batches, 10, "");
ABSL_FLAG(int, first_layer, 1, "");
ABSL_FLAG(int, layers, 4, "");
ABSL_FLAG(int64_t, row_bytes, 1024, "");
ABSL_FLAG(double, row_us, 10, "compute of one row");
ABSL_FLAG(double, copy_us, 1000, "of one expert into a slot");
ABSL_FLAG(double, dense_us, 1000, "between a layer's experts and the next gate");
ABSL_FLAG(double, link_bytes_per_s, 3e7, "what the policy believes of the links");
ABSL_FLAG(double, policy_scale, 100, "what a second of the policy's CPU time is charged as");
ABSL_FLAG(int, seed, 1, "of the order of modes");

namespace switchyard::bench {
namespace {

absl::StatusOr<RoutingTrace> ReadTrace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return ParseTrace(bytes.str());
}

struct Traces {
  RoutingTrace fit, run;
};

absl::StatusOr<Traces> MakeTraces() {
  Traces traces;
  if (!absl::GetFlag(FLAGS_chain)) {
    ASSIGN_OR_RETURN(traces.run, ReadTrace(absl::GetFlag(FLAGS_trace)));
    ASSIGN_OR_RETURN(traces.fit, ReadTrace(absl::GetFlag(FLAGS_fit)));
    return traces;
  }
  ASSIGN_OR_RETURN(const RoutingChain chain, RoutingChain::Tuned({}));
  traces.fit = chain.Draw({.num_sequences = 400, .seed = 1});
  traces.run = chain.Draw({.num_sequences = 1600, .seed = 2});
  return traces;
}

struct NamedRun {
  std::string name;
  std::unique_ptr<PlacementRun> run;
};

absl::StatusOr<NamedRun> MakeRun(const std::string& name, const BatchPlan& plan, Communicator* comm) {
  const std::vector<std::string> parts = absl::StrSplit(name, ':');
  RunOptions options;
  ASSIGN_OR_RETURN(options.mode, ParsePlacementMode(parts[0]));
  if (parts.size() > 1 && !absl::SimpleAtoi(parts[1], &options.spare_slots)) {
    return absl::InvalidArgumentError(absl::StrCat("--modes: ", name));
  }
  options.layer = {.row_bytes = absl::GetFlag(FLAGS_row_bytes),
                   .row_compute = absl::Microseconds(absl::GetFlag(FLAGS_row_us))};
  options.copy = absl::Microseconds(absl::GetFlag(FLAGS_copy_us));
  options.dense = absl::Microseconds(absl::GetFlag(FLAGS_dense_us));
  options.policy_scale = absl::GetFlag(FLAGS_policy_scale);
  CostModel costs;
  costs.expert_bytes = absl::GetFlag(FLAGS_copy_us);
  costs.copy_bytes_per_s = 1e6;
  costs.seconds_per_row = absl::GetFlag(FLAGS_row_us) * 1e-6;
  costs.row_bytes = 2.0 * static_cast<double>(absl::GetFlag(FLAGS_row_bytes));
  costs.exchange_bytes_per_s = absl::GetFlag(FLAGS_link_bytes_per_s);
  costs.layer_seconds = absl::GetFlag(FLAGS_dense_us) * 1e-6;
  options.costs = CostsOf(costs);
  NamedRun named{.name = name, .run = nullptr};
  ASSIGN_OR_RETURN(named.run, PlacementRun::Create(options, &plan, comm));
  return named;
}

// The largest of all ranks' values, element by element.
absl::StatusOr<std::vector<double>> Slowest(Communicator* comm, const std::vector<double>& mine) {
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, comm->AllGather({.deadline = Soon()},
                                         {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(double)}));
  RETURN_IF_ERROR(work->Wait());
  std::vector<double> slowest = mine;
  for (Message& message : work->received()) {
    std::vector<double> theirs(mine.size());
    std::memcpy(theirs.data(), message.payload(), mine.size() * sizeof(double));
    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], theirs[i]);
  }
  return slowest;
}

absl::Status RunAll(const BatchPlan& plan, Communicator* comm) {
  std::vector<NamedRun> runs;
  for (const std::string& name : absl::GetFlag(FLAGS_modes)) {
    ASSIGN_OR_RETURN(NamedRun run, MakeRun(name, plan, comm));
    double seconds = 0;
    // One after the other, so that nobody disturbs it; then the first rank's holds for all.
    if (comm->rank() == 0) {
      ASSIGN_OR_RETURN(seconds, run.run->MeasureDecision());
      std::cout << "{\"mode\": \"" << run.name << "\", \"decide_us\": " << seconds * 1e6
                << ", \"estimate_us\": " << plan.estimate_seconds * 1e6 << "}" << std::endl;
    }
    ASSIGN_OR_RETURN(const std::vector<double> agreed, Slowest(comm, {seconds}));
    run.run->set_decide_seconds(agreed[0]);
    runs.push_back(std::move(run));
  }
  std::mt19937 random(static_cast<uint32_t>(absl::GetFlag(FLAGS_seed)));
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int batch = 0; batch < static_cast<int>(plan.batches.size()); ++batch) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      ASSIGN_OR_RETURN(const RunResult result, runs[i].run->RunBatch(batch));
      std::vector<double> mine = result.layer_seconds;
      mine.insert(mine.end(),
                  {result.batch_seconds, static_cast<double>(result.copies), static_cast<double>(result.fine_tuned)});
      ASSIGN_OR_RETURN(std::vector<double> slowest, Slowest(comm, mine));
      if (comm->rank() != 0) continue;
      const double tuned = slowest.back(), copies = slowest[slowest.size() - 2], seconds = slowest[slowest.size() - 3];
      slowest.resize(slowest.size() - 3);
      for (double& layer : slowest) layer *= 1e3;
      std::cout << "{\"batch\": " << batch << ", \"mode\": \"" << runs[i].name << "\", \"layers_ms\": ["
                << absl::StrJoin(slowest, ", ") << "], \"batch_ms\": " << seconds * 1e3 << ", \"copies\": " << copies
                << ", \"fine_tuned\": " << tuned << "}\n";
    }
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

absl::Status Main() {
  ASSIGN_OR_RETURN(const Traces traces, MakeTraces());
  const bool decode = absl::GetFlag(FLAGS_phase) == "decode";
  ASSIGN_OR_RETURN(const BatchPlan plan, PlanBatches({.num_ranks = absl::GetFlag(FLAGS_world),
                                                      .batch_tokens = absl::GetFlag(FLAGS_tokens),
                                                      .phase = decode ? Phase::kDecode : Phase::kPrefill,
                                                      .first_layer = absl::GetFlag(FLAGS_first_layer),
                                                      .num_layers = absl::GetFlag(FLAGS_layers),
                                                      .num_batches = absl::GetFlag(FLAGS_batches),
                                                      .estimator = absl::GetFlag(FLAGS_estimator)},
                                                     traces.fit, traces.run));
  test::DirectoryStore store(absl::GetFlag(FLAGS_directory));
  std::unique_ptr<Communicator> comm;
  ASSIGN_OR_RETURN(comm, FormGlooGroup({.rank = absl::GetFlag(FLAGS_rank),
                                        .world = absl::GetFlag(FLAGS_world),
                                        .epoch = 1,
                                        .token = "placement",
                                        .address = absl::GetFlag(FLAGS_address),
                                        .deadline = Soon()},
                                       &store));
  return RunAll(plan, comm.get());
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = switchyard::bench::Main();
  if (!status.ok()) std::cerr << "placement_worker " << absl::GetFlag(FLAGS_rank) << ": " << status << std::endl;
  return status.ok() ? 0 : 1;
}
