// switchyard experts: how often each expert was chosen lately, and where it is.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::cli {
namespace {

constexpr size_t kMostPopular = 4;  // experts named in a layer's line

struct ExpertsFlags {
  ServerFlags server = {.server = kAdminServer};
  std::vector<int32_t> layers;
  std::vector<int32_t> why;  // expert and layer; empty: no --why
  bool estimators = false;
  bool json = false;
};

int64_t RowsOf(const v1::ExpertUse& expert) { return expert.prefill_rows() + expert.decode_rows(); }

double Percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// A layer's rows, in total and by phase.
struct LayerRows {
  int64_t prefill = 0, decode = 0;
  explicit LayerRows(const v1::LayerExperts& layer) {
    for (const v1::ExpertUse& expert : layer.experts()) {
      prefill += expert.prefill_rows();
      decode += expert.decode_rows();
    }
  }
  int64_t all() const { return prefill + decode; }
};

// Returns the experts' ids, most popular first; of equal ones the smaller id first.
std::vector<int> ByPopularity(const v1::LayerExperts& layer) {
  std::vector<int> order(static_cast<size_t>(layer.experts_size()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return RowsOf(layer.experts(a)) > RowsOf(layer.experts(b)); });
  return order;
}

std::string ReasonName(v1::Replica::Reason reason) { return EnumName(v1::Replica::Reason_descriptor(), reason); }

// Optional parts are left out if they are empty.
Json AnswerJson(const v1::GetExpertsResponse& answer) {
  Json out =
      ToJson(answer, {"model", "num_moe_layers", "num_experts", "experts_per_token", "num_workers", "prefill_tokens",
                      "decode_tokens", "halved_after_tokens", "placement", "layers", "why", "report_age_seconds"});
  if (answer.why().empty()) out.erase("why");
  for (Json& layer : out["layers"]) {
    for (Json& expert : layer["experts"]) {
      if (expert["now"].empty()) expert.erase("now");
    }
  }
  return out;
}

void PrintHead(std::ostream& out, const v1::GetExpertsResponse& answer) {
  out << absl::StreamFormat("%s: %d MoE layers, %d experts of which %d per token, %d workers\n", answer.model(),
                            answer.num_moe_layers(), answer.num_experts(), answer.experts_per_token(),
                            answer.num_workers());
  out << absl::StreamFormat("counted: %d prefilled and %d decoded tokens (halved every %d)\n", answer.prefill_tokens(),
                            answer.decode_tokens(), answer.halved_after_tokens());
  out << "placement: " << answer.placement() << "\n";
}

// Prints a line for each layer.
void PrintLayers(std::ostream& out, const v1::GetExpertsResponse& answer) {
  out << absl::StreamFormat("%5s  %18s  %18s  %s\n", "layer", "busiest expert", "busiest worker",
                            "most popular (share of rows)");
  for (const v1::LayerExperts& layer : answer.layers()) {
    const int64_t rows = LayerRows(layer).all();
    std::vector<std::string> popular;
    for (const int expert : ByPopularity(layer)) {
      if (rows == 0 || popular.size() == kMostPopular) break;
      popular.push_back(absl::StrFormat("%d (%.1f %%)", expert, Percent(RowsOf(layer.experts(expert)), rows)));
    }
    out << absl::StreamFormat("%5d  %11.2f x mean  %11.2f x mean  %s\n", layer.layer(),
                              layer.busiest_expert_over_mean(), layer.busiest_worker_over_mean(),
                              popular.empty() ? "no tokens yet" : absl::StrJoin(popular, ", "));
  }
}

// "0, 3, spare 1 (gate), spare 2 (estimate)".
std::string PlacesOf(const v1::ExpertUse& expert) {
  std::vector<std::string> places;
  if (expert.now().empty()) return absl::StrJoin(expert.workers(), ", ");
  for (const v1::Replica& replica : expert.now()) {
    const bool resident = replica.reason() == v1::Replica::RESIDENT;
    places.push_back(resident ? absl::StrCat(replica.worker())
                              : absl::StrCat("spare ", replica.worker(), " (", ReasonName(replica.reason()), ")"));
  }
  return absl::StrJoin(places, ", ");
}

// Prints a line for each expert.
void PrintExperts(std::ostream& out, const v1::LayerExperts& layer) {
  const LayerRows rows(layer);
  out << absl::StreamFormat("layer %d: busiest expert %.2f x mean, busiest worker %.2f x mean\n", layer.layer(),
                            layer.busiest_expert_over_mean(), layer.busiest_worker_over_mean());
  out << absl::StreamFormat("%8s  %9s  %9s  %s\n", "expert", "prefill", "decode", "on workers");
  for (const int id : ByPopularity(layer)) {
    const v1::ExpertUse& expert = layer.experts(id);
    out << absl::StreamFormat("%8d  %7.2f %%  %7.2f %%  %s\n", id, Percent(expert.prefill_rows(), rows.prefill),
                              Percent(expert.decode_rows(), rows.decode), PlacesOf(expert));
  }
}

// Prints a line for each estimator.
void PrintPredictors(std::ostream& out, const v1::LayerExperts& layer, int num_workers) {
  out << absl::StreamFormat("layer %d\n", layer.layer());
  if (layer.estimators().empty()) out << "  nothing is foreseen of it, or no worker has told yet\n";
  for (const v1::EstimatorUse& use : layer.estimators()) {
    const std::string state =
        use.workers_using() == 0 ? "" : absl::StrFormat("  used by %d of %d", use.workers_using(), num_workers);
    out << absl::StreamFormat("  %-7s  %d ahead  %-10s  right %5.1f %%  distance %.3f  batches %6d%s\n", use.phase(),
                              use.layers_ahead(), use.estimator(), 100 * use.accuracy(), use.total_variation(),
                              use.batches(), state);
  }
}

// Reads "8,3" as expert and layer; returns what is wrong with it.
std::string ReadWhy(absl::string_view text, std::vector<int32_t>* why) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  why->assign(parts.size(), 0);
  bool ok = parts.size() == 2;
  for (size_t i = 0; ok && i < parts.size(); ++i) ok = absl::SimpleAtoi(parts[i], &(*why)[i]);
  return ok ? "" : "2 required EXPERT,LAYER missing";
}

absl::StatusOr<int> RunExperts(Console& console, const ExpertsFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  v1::GetExpertsRequest request;
  request.mutable_layers()->Add(flags.layers.begin(), flags.layers.end());
  if (!flags.why.empty()) {
    request.mutable_why()->set_expert(flags.why[0]);
    request.mutable_why()->set_layer(flags.why[1]);
  }
  ASSIGN_OR_RETURN(const v1::GetExpertsResponse answer, client->GetExperts(request));
  if (flags.json) {
    console.out << Dump(AnswerJson(answer)) << std::endl;
    return kExitOk;
  }
  if (!flags.why.empty()) {
    console.out << answer.why() << std::endl;
    return kExitOk;
  }
  PrintHead(console.out, answer);
  if (flags.estimators) {
    for (const v1::LayerExperts& layer : answer.layers()) PrintPredictors(console.out, layer, answer.num_workers());
  } else if (flags.layers.empty()) {
    PrintLayers(console.out, answer);
  } else {
    for (const v1::LayerExperts& layer : answer.layers()) PrintExperts(console.out, layer);
  }
  console.out.flush();
  return kExitOk;
}

}  // namespace

void AddExpertsCommand(Command* app) {
  Command* command = app->AddCommand("experts", "show how often each expert was chosen lately, and where it is");
  auto flags = std::make_shared<ExpertsFlags>();
  command->flags()->BeginGroup("What to show");
  command->flags()->Add("layer=LAYER", &flags->layers,
                        "list every expert of this MoE layer, counted from 0; may be repeated");
  command->flags()->AddFunction(
      "why=EXPERT,LAYER", "", [flags](absl::string_view text) { return ReadWhy(text, &flags->why); },
      "explain where this expert of this MoE layer is; both are counted from 0");
  command->flags()->Add("estimators", &flags->estimators,
                        "show how accurate each estimator of coming layers is, and which are in use");
  command->flags()->Add("json", &flags->json, "print one line of JSON, with every expert");
  flags->server.AddTo(command->flags());
  command->SetFooter(
      "Without --layer, prints a line for each MoE layer. Rows are (token, choice) pairs; old ones fade.\n"
      "x mean: 1 = balanced load. The busiest worker's shows by how much imbalance slows a layer down.\n"
      "Workers report their estimators' figures and their replicas every few seconds. Right: the share of batches "
      "whose 2k most popular experts were predicted; distance: total variation, 0 = exact. Spare: a slot for a "
      "replica, filled when the group began (start), after an estimate, or after the gate.");
  command->SetRun([flags](Console& console) { return RunExperts(console, *flags); });
}

}  // namespace switchyard::cli
