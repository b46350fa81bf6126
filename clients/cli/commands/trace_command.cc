// switchyard trace: records which experts documents are routed to, as a file for profiles, the simulator and
// benchmarks.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "clients/cli/command.h"
#include "clients/cli/commands/trace_record.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/popularity.h"
#include "scheduler/simulator/trace_replay.h"

namespace switchyard::cli {
namespace {

constexpr int kShownExperts = 4;  // of a layer

std::string ReadPhase(absl::string_view name, std::string* phase) {
  if (name != NameOf(popularity::Phase::kPrefill) && name != NameOf(popularity::Phase::kDecode)) {
    return absl::StrCat(name, " not in {", NameOf(popularity::Phase::kPrefill), ",", NameOf(popularity::Phase::kDecode),
                        "}");
  }
  *phase = std::string(name);
  return "";
}

void AddRecordCommand(Command* trace) {
  Command* command = trace->AddCommand("record", "record which experts documents go to, by token and MoE layer");
  auto flags = std::make_shared<RecordFlags>();
  command->flags()->BeginGroup("Files");
  command->flags()->Add("output=FILE", &flags->output, "file for the trace; an existing one is overwritten").Required();
  AddDocumentFlags("input", flags.get(), command->flags());
  command->SetFooter(
      "Examples:\n"
      "  switchyard trace record --input=documents.jsonl --output=prose.trace --label=prose\n"
      "  switchyard trace record --text=\"The sea is\" --max_tokens=64 --output=sea.trace\n"
      "A document is routed as it is, as a prompt; with --max_tokens above 1 also what the model generates after it.\n"
      "The format is described in scheduler/base/io/trace_bytes.h; what was written stays readable if this is "
      "interrupted.");
  command->SetRun([flags](Console& console) { return RecordTrace(console, *flags); });
}

// Returns "prose 12", …: the number of sequences by label, in alphabetical order.
std::string Labels(const popularity::RoutingTrace& trace) {
  std::map<std::string, int64_t> labels;
  for (const popularity::TraceSequence& sequence : trace.sequences) ++labels[sequence.label];
  return absl::StrJoin(labels, ", ", [](std::string* out, const auto& label) {
    absl::StrAppend(out, label.first.empty() ? "without a label" : label.first, " ", label.second);
  });
}

void PrintLayer(const popularity::RoutingTrace& trace, int layer, std::ostream& out) {
  popularity::Popularity rows(static_cast<size_t>(trace.shape.num_experts));
  for (const popularity::TraceSequence& sequence : trace.sequences) {
    const std::vector<int64_t> counts =
        popularity::CountsOf(popularity::ViewOf(trace, sequence, 0, sequence.num_tokens()), layer);
    for (size_t e = 0; e < rows.size(); ++e) rows[e] += counts[e];
  }
  const int64_t all = popularity::TotalOf(rows), most = *std::max_element(rows.begin(), rows.end());
  const auto share = [&](int64_t part) {
    return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
  };
  out << absl::StrFormat("layer %d: busiest expert %.2f times the mean; most chosen:", layer,
                         share(most) * trace.shape.num_experts);
  for (const int32_t expert : popularity::TopExperts(rows, kShownExperts))
    out << absl::StrFormat(" %d (%.1f%%)", expert, 100 * share(rows[static_cast<size_t>(expert)]));
  out << "\n";
}

absl::StatusOr<int> ShowTrace(Console& console, const std::string& path) {
  ASSIGN_OR_RETURN(const popularity::RoutingTrace trace, ReadTrace(console, path));
  int64_t prompt = 0;
  for (const popularity::TraceSequence& sequence : trace.sequences) prompt += sequence.num_prompt;
  console.out << "model: " << (trace.model.empty() ? "unknown" : trace.model) << "\n"
              << trace.shape.num_layers << " MoE layers, " << trace.shape.num_experts << " experts, top-"
              << trace.shape.top_k << "\n"
              << trace.sequences.size() << " sequences (" << Labels(trace) << "), " << trace.num_tokens() << " tokens, "
              << prompt << " of prompts\n";
  for (const popularity::TraceChannel& channel : trace.channels)
    console.out << "channel " << channel.name << ": " << channel.num_predicted << " predicted experts a token\n";
  for (int layer = 0; layer < trace.shape.num_layers; ++layer) PrintLayer(trace, layer, console.out);
  console.out.flush();
  return kExitOk;
}

struct ReplayFlags {
  std::string path;
  std::string phase = "decode";
  simulator::ReplayOptions options;
};

absl::StatusOr<int> Replay(Console& console, const ReplayFlags& flags) {
  ASSIGN_OR_RETURN(const popularity::RoutingTrace trace, ReadTrace(console, flags.path));
  simulator::ReplayOptions options = flags.options;
  options.phase =
      flags.phase == NameOf(popularity::Phase::kPrefill) ? popularity::Phase::kPrefill : popularity::Phase::kDecode;
  const absl::StatusOr<simulator::ReplayReport> report = simulator::ReplayTrace(trace, options);
  if (!report.ok()) return BadInput(report.status().message());
  console.out << report->num_batches << " batches of " << options.batch_tokens << " tokens, " << flags.phase << ", "
              << options.num_devices << " workers\n"
              << "placement      busiest/mean median   p95  copies a layer\n";
  for (const simulator::ReplayReport::Mode& mode : report->modes) {
    console.out << absl::StrFormat("%-14s %19.2f %5.2f %15.2f\n", NameOf(mode.mode), mode.median, mode.p95,
                                   mode.copies_per_layer);
  }
  console.out << "estimator, one layer ahead     top-2k  distance\n";
  for (const simulator::ReplayReport::LoadPredictor& one : report->estimators)
    console.out << absl::StrFormat("%-30s %6.2f %9.3f\n", one.name, one.accuracy, one.distance);
  console.out.flush();
  return kExitOk;
}

void AddShowTrace(Command* trace) {
  Command* command = trace->AddCommand("show", "show a trace's contents, and how skewed each layer is");
  auto path = std::make_shared<std::string>();
  command->flags()->BeginGroup("Files");
  command->flags()->AddPositional("file", path.get(), "the trace").Required();
  command->SetRun([path](Console& console) { return ShowTrace(console, *path); });
}

void AddReplayCommand(Command* trace) {
  Command* command = trace->AddCommand(
      "replay", "what estimators would have foreseen of a trace, and how even placements would have kept workers");
  auto flags = std::make_shared<ReplayFlags>();
  command->flags()->BeginGroup("Replay");
  command->flags()->AddPositional("file", &flags->path, "the trace").Required();
  command->flags()->Add("workers", &flags->options.num_devices, "number of workers that share the experts");
  command->flags()->Add("batch_tokens", &flags->options.batch_tokens, "tokens per batch");
  command->flags()->Add("spare_slots", &flags->options.spare_slots,
                        "slots for replicas on each worker, as the server's flag");
  command->flags()->AddFunction(
      "phase=NAME", flags->phase, [flags](absl::string_view name) { return ReadPhase(name, &flags->phase); },
      "how batches are made: prefill = neighbouring tokens; decode = a token from each of --batch_tokens equal parts "
      "of the trace");
  command->SetFooter("Rows alone are counted: no model runs, and nothing is sent.");
  command->SetRun([flags](Console& console) { return Replay(console, *flags); });
}

}  // namespace

void AddTraceCommand(Command* app) {
  Command* command = app->AddCommand("trace", "routing traces: which experts tokens go to");
  AddRecordCommand(command);
  AddShowTrace(command);
  AddReplayCommand(command);
}

}  // namespace switchyard::cli
