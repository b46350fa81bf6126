// One worker of `tests/bench/run.sh placement`: rank --rank of the workers at --addresses, alone in its network
// namespace.
//
// All workers run the same batches under each mode in turn, so that what disturbs one disturbs all.  Each writes a line
// of JSON for each (batch, mode) to --output.RANK: when the layer began and ended, copies, fine-tuned layers.
#include <algorithm>
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
#include "scheduler/popularity/predictors/live_predictor.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "tests/bench/placement/batch_plan.h"
#include "tests/bench/placement/link_mesh.h"
#include "tests/bench/placement/placement_run.h"
#include "tests/bench/placement/probe_time.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/routing/routing_chain.h"

ABSL_FLAG(int, rank, 0, "");
ABSL_FLAG(std::vector<std::string>, addresses, {}, "IPv4, of all workers");
ABSL_FLAG(std::string, output, "", "what results are written to, with the rank behind it; all ranks see the folder");
ABSL_FLAG(bool, chain, false, "chains tuned to the Lina paper's skew and pattern in place of the two traces");
ABSL_FLAG(std::string, fit, "", "trace of which profiles are made");
ABSL_FLAG(std::string, trace, "", "trace that is run");
ABSL_FLAG(std::string, label, "", "runs only sequences of this label");
ABSL_FLAG(std::string, leave_out, "", "label of sequences that the profile does not see");
ABSL_FLAG(std::string, estimator, "probe", "path, or a channel of the trace");
ABSL_FLAG(int64_t, probe_hidden, 0,
          "H of the probe's product, charged for each layer that a worker looks ahead; 0: none");
ABSL_FLAG(std::vector<std::string>, modes, {"static"}, "NAME or NAME:SLOTS, spare slots a device");
ABSL_FLAG(std::vector<std::string>, few_modes, {},
          "likewise; run in one batch of --few, and only decided in the others");
ABSL_FLAG(int, few, 4, "");
ABSL_FLAG(int, tokens, 256, "of a batch, over all ranks");
ABSL_FLAG(std::string, phase, "prefill", "prefill or decode");
ABSL_FLAG(int, batches, 10, "");
ABSL_FLAG(int, first_layer, 0, "");
ABSL_FLAG(int, layers, 6, "the first is decided and not run");
ABSL_FLAG(int64_t, row_bytes, 1024, "");
ABSL_FLAG(double, row_us, 10, "compute of one row");
ABSL_FLAG(double, copy_us, 1000, "of one expert into a slot");
ABSL_FLAG(double, dense_us, 1000, "between a layer's experts and the next gate");
ABSL_FLAG(double, link_bytes_per_s, 3e7, "what the policy believes of the links");
ABSL_FLAG(double, policy_scale, 100, "what a second of the policy's CPU time is charged as");
ABSL_FLAG(int, seed, 1, "of the order of modes");

namespace switchyard::bench {
namespace {

struct Traces {
  popularity::RoutingTrace fit, run;
};

absl::StatusOr<Traces> MakeTraces() {
  Traces traces;
  if (!absl::GetFlag(FLAGS_chain)) {
    traces.run = ReadTraceOrExit(absl::GetFlag(FLAGS_trace));
    traces.fit = ReadTraceOrExit(absl::GetFlag(FLAGS_fit));
    const std::string label = absl::GetFlag(FLAGS_label);
    const auto is_other = [&](const popularity::TraceSequence& sequence) {
      return !label.empty() && sequence.label != label;
    };
    std::erase_if(traces.run.sequences, is_other);
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
  bool few = false;  // not in every batch
};

absl::StatusOr<NamedRun> MakeRun(const std::string& name, const BatchPlan& plan, LinkMesh* mesh) {
  const std::vector<std::string> parts = absl::StrSplit(name, ':');
  RunOptions options;
  ASSIGN_OR_RETURN(options.mode, placement::ParsePlacementMode(parts[0]));
  if (parts.size() > 1 && !absl::SimpleAtoi(parts[1], &options.spare_slots)) {
    return absl::InvalidArgumentError(absl::StrCat("--modes: ", name));
  }
  options.layer = {.row_bytes = absl::GetFlag(FLAGS_row_bytes),
                   .row_compute = absl::Microseconds(absl::GetFlag(FLAGS_row_us))};
  options.copy = absl::Microseconds(absl::GetFlag(FLAGS_copy_us));
  options.dense = absl::Microseconds(absl::GetFlag(FLAGS_dense_us));
  options.policy_scale = absl::GetFlag(FLAGS_policy_scale);
  double row_seconds = absl::GetFlag(FLAGS_row_us) * 1e-6;
  // There and back.
  const double exchanged_bytes = 2.0 * static_cast<double>(absl::GetFlag(FLAGS_row_bytes));
  const double link_bytes_per_s = absl::GetFlag(FLAGS_link_bytes_per_s);
  if (link_bytes_per_s > 0) row_seconds += exchanged_bytes / link_bytes_per_s;
  options.costs = {.copy_ps = placement::Picoseconds(absl::GetFlag(FLAGS_copy_us) * 1e-6),
                   .row_ps = placement::Picoseconds(row_seconds)};
  NamedRun named{.name = name, .run = nullptr};
  ASSIGN_OR_RETURN(named.run, PlacementRun::Create(options, &plan, mesh));
  return named;
}

// The time of a decision in each mode, measured by the first rank while the others wait.
absl::Status AgreeOnDecisions(const BatchPlan& plan, std::vector<NamedRun>* runs, LinkMesh* mesh) {
  const std::string path = absl::StrCat(absl::GetFlag(FLAGS_output), ".decisions");
  if (mesh->rank() == 0) {
    std::ofstream file(path);
    double estimate_seconds = plan.estimate_seconds;
    if (const int64_t hidden = absl::GetFlag(FLAGS_probe_hidden); hidden > 0) {
      const int64_t rows = absl::GetFlag(FLAGS_tokens) / mesh->world();
      ASSIGN_OR_RETURN(const double seconds, ProbeSeconds(plan.shape, rows, hidden));
      estimate_seconds += popularity::kMaxAhead * seconds;
    }
    file << "distinct " << plan.num_distinct << "\nestimate " << estimate_seconds << "\n";
    for (NamedRun& run : *runs) {
      ASSIGN_OR_RETURN(const double seconds, run.run->MeasureDecision());
      file << run.name << " " << seconds << "\n";
    }
  }
  RETURN_IF_ERROR(mesh->Gather(1));
  std::ifstream file(path);
  double seconds = 0;
  std::string name;
  file >> name >> seconds >> name >> seconds;  // of the two lines the estimate's
  for (NamedRun& run : *runs) {
    run.run->set_estimate_seconds(seconds);
  }
  for (NamedRun& run : *runs) {
    file >> name >> seconds;
    if (!file || name != run.name) return absl::InternalError(absl::StrCat(path, " is not whole"));
    run.run->set_decide_seconds(seconds);
  }
  return absl::OkStatus();
}

void Write(std::ostream& out, int batch, const std::string& mode, const RunResult& result) {
  const PhaseTimes& phases = result.phases;
  const double phases_ms[] = {absl::ToDoubleMilliseconds(phases.gather), absl::ToDoubleMilliseconds(phases.dispatch),
                              absl::ToDoubleMilliseconds(phases.compute), absl::ToDoubleMilliseconds(phases.combine)};
  out << "{\"batch\": " << batch << ", \"mode\": \"" << mode << "\", \"gate_us\": " << result.gate_us
      << ", \"end_us\": " << result.end_us << ", \"link_rows\": " << result.link_rows
      << ", \"own_rows\": " << result.own_rows << ", \"phases_ms\": [" << absl::StrJoin(phases_ms, ", ")
      << "], \"batch_ms\": " << result.batch_seconds * 1e3 << ", \"copies\": " << result.copies
      << ", \"fine_tuned\": " << result.fine_tuned << "}\n";
}

// Long messages between all, so that no connection is new when times count.
absl::Status WarmUp(LinkMesh* mesh) {
  const std::vector<int64_t> long_ones(static_cast<size_t>(mesh->world()), LinkMesh::kMaxMessage / 2);
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(mesh->Exchange(long_ones, long_ones));
  return absl::OkStatus();
}

absl::Status RunAll(const BatchPlan& plan, LinkMesh* mesh) {
  std::vector<NamedRun> runs;
  for (const bool few : {false, true}) {
    for (const std::string& name : few ? absl::GetFlag(FLAGS_few_modes) : absl::GetFlag(FLAGS_modes)) {
      ASSIGN_OR_RETURN(NamedRun run, MakeRun(name, plan, mesh));
      run.few = few;
      runs.push_back(std::move(run));
    }
  }
  RETURN_IF_ERROR(AgreeOnDecisions(plan, &runs, mesh));
  RETURN_IF_ERROR(WarmUp(mesh));
  std::ofstream out(absl::StrCat(absl::GetFlag(FLAGS_output), ".", mesh->rank()));
  std::mt19937 random(static_cast<uint32_t>(absl::GetFlag(FLAGS_seed)));
  std::vector<size_t> order(runs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int batch = 0; batch < static_cast<int>(plan.batches.size()); ++batch) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      if (runs[i].few && batch % absl::GetFlag(FLAGS_few) != 0) {
        runs[i].run->SkipBatch(batch);
        continue;
      }
      ASSIGN_OR_RETURN(const RunResult result, runs[i].run->RunBatch(batch));
      Write(out, batch, runs[i].name, result);
    }
  }
  return out.flush() ? absl::OkStatus() : absl::UnavailableError("results cannot be written");
}

absl::Status Main() {
  ASSIGN_OR_RETURN(const Traces traces, MakeTraces());
  const bool decode = absl::GetFlag(FLAGS_phase) == "decode";
  ASSIGN_OR_RETURN(const BatchPlan plan,
                   PlanBatches({.num_ranks = static_cast<int>(absl::GetFlag(FLAGS_addresses).size()),
                                .batch_tokens = absl::GetFlag(FLAGS_tokens),
                                .phase = decode ? popularity::Phase::kDecode : popularity::Phase::kPrefill,
                                .first_layer = absl::GetFlag(FLAGS_first_layer),
                                .num_layers = absl::GetFlag(FLAGS_layers),
                                .num_batches = absl::GetFlag(FLAGS_batches),
                                .estimator = absl::GetFlag(FLAGS_estimator),
                                .leave_out = absl::GetFlag(FLAGS_leave_out)},
                               traces.fit, traces.run));
  ASSIGN_OR_RETURN(const std::unique_ptr<LinkMesh> mesh,
                   LinkMesh::Connect(absl::GetFlag(FLAGS_rank), absl::GetFlag(FLAGS_addresses)));
  return RunAll(plan, mesh.get());
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = switchyard::bench::Main();
  if (!status.ok()) std::cerr << "placement_worker " << absl::GetFlag(FLAGS_rank) << ": " << status << std::endl;
  return status.ok() ? 0 : 1;
}
