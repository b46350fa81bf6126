// switchyard status: the served model, whether it is ready, and how busy the server is.
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

struct StatusFlags {
  ServerFlags server;
  double wait_seconds = 0;
  bool json = false;
  std::string health;  // alive or ready; empty: all
};

struct Snapshot {
  v1::GetLoadResponse load;
  absl::StatusOr<v1::GetModelInfoResponse> model;  // MODEL_LOADING until the first group has formed
  bool serving = false;                            // the health service's "readiness"
};

absl::StatusOr<Snapshot> Look(client::Client* client) {
  Snapshot out;
  ASSIGN_OR_RETURN(out.load, client->GetLoad());
  std::sort(out.load.mutable_workers()->begin(), out.load.mutable_workers()->end(),
            [](const v1::WorkerLoad& a, const v1::WorkerLoad& b) { return a.rank() < b.rank(); });
  ASSIGN_OR_RETURN(out.serving, client->IsServing("readiness"));
  out.model = client->GetModelInfo();
  return out;
}

std::string Progress(const Snapshot& now) {
  return absl::StrCat("not ready: ", now.load.not_ready_reason().empty() ? "starting" : now.load.not_ready_reason());
}

// Asks until the server is ready or the time is up; prints a line on err whenever the reason for waiting changes.
absl::StatusOr<Snapshot> LookUntilReady(Console& console, const StatusFlags& flags) {
  const absl::Time give_up = absl::Now() + absl::Seconds(flags.wait_seconds);
  std::unique_ptr<client::Client> client;
  std::string said;
  for (;;) {
    absl::StatusOr<Snapshot> now = absl::UnavailableError("");
    if (client == nullptr) {
      auto connected = flags.server.Connect();
      if (connected.ok()) {
        client = *std::move(connected);
      } else {
        now = connected.status();
        if (absl::IsInvalidArgument(now.status())) return now;
      }
    }
    if (client != nullptr) now = Look(client.get());
    if ((now.ok() && now->serving) || absl::Now() >= give_up) return now;
    const std::string line = now.ok() ? Progress(*now) : std::string(now.status().message());
    if (line != said) console.err << line << std::endl;
    said = line;
    absl::SleepFor(std::min(kPollInterval, give_up - absl::Now()));
  }
}

Json SnapshotJson(const Snapshot& now) {
  Json out = {{"ready", now.serving}};
  if (!now.serving) out["not_ready_reason"] = now.load.not_ready_reason();
  if (now.model.ok()) {
    out["model"] = {{"name", now.model->model()}};
    out["model"].update(
        ToJson(*now.model, {"architecture", "dtype", "vocab_size", "max_model_len", "num_layers", "num_experts",
                            "experts_per_token", "eos_token_ids", "has_tokenizer", "has_chat_template", "num_workers",
                            "weights_hash", "server_version", "combine"}));
  }
  out["requests"] = {{"running", now.load.running_requests()},
                     {"waiting", now.load.waiting_requests()},
                     {"waiting_tokens", now.load.waiting_tokens()},
                     {"max_waiting", now.load.max_waiting_requests()}};
  out.update(ToJson(now.load, {"preemptions", "group_epoch"}));
  if (now.load.has_auto_placement())
    out["auto_placement"] = ToJson(now.load.auto_placement(), {"steps", "deciding_steps", "gained_seconds"});
  if (now.load.has_micro_batches())
    out["micro_batches"] = ToJson(now.load.micro_batches(), {"steps", "cut_steps", "gained_seconds"});
  out["workers"] = Json::array();
  for (const v1::WorkerLoad& worker : now.load.workers()) {
    out["workers"].push_back(ToJson(worker, {"rank", "pid", "host", "state", "metrics_address", "running_requests",
                                             "kv_blocks_used", "kv_blocks_cached", "kv_blocks_total", "block_size"}));
  }
  return out;
}

void PrintModel(std::ostream& out, const v1::GetModelInfoResponse& model) {
  out << absl::StreamFormat(
      "model      %s (%s, %s%s%s), %d layers, %d experts of which %d per token, vocabulary %d, context %d tokens\n",
      model.model(), model.architecture(), model.dtype(),
      model.quantization().empty() ? "" : absl::StrCat(", weights in ", model.quantization()),
      model.kv_cache_dtype().empty() ? "" : absl::StrCat(", keys and values in ", model.kv_cache_dtype()),
      model.num_layers(), model.num_experts(), model.experts_per_token(), model.vocab_size(), model.max_model_len());
  if (model.models_size() > 1) out << "names      " << absl::StrJoin(model.models(), ", ") << "\n";
  out << "text       tokenizer " << (model.has_tokenizer() ? "yes" : "no (send token ids)") << ", chat template "
      << (model.has_chat_template() ? "yes" : "no") << "\n";
  if (!model.combine().empty() && model.combine() != "exact") out << "roundings  outputs " << model.combine() << "\n";
}

void PrintTable(std::ostream& out, const std::string& address, const Snapshot& now) {
  out << "server     " << address << ": "
      << (now.serving ? "ready"
                      : absl::StrCat("NOT ready: ", now.load.not_ready_reason().empty() ? "no reason given"
                                                                                        : now.load.not_ready_reason()))
      << "\n";
  if (now.model.ok()) {
    PrintModel(out, *now.model);
  } else if (now.serving) {  // a server that only trains
    out << "model      none: " << now.model.status().message() << "\n";
  }
  out << absl::StreamFormat("requests   %d running, %d waiting (%d tokens) of at most %d; %d preemptions so far\n",
                            now.load.running_requests(), now.load.waiting_requests(), now.load.waiting_tokens(),
                            now.load.max_waiting_requests(), now.load.preemptions());
  if (now.load.has_auto_placement()) {
    const v1::AutoPlacement& placement = now.load.auto_placement();
    const double each = 1e3 * placement.gained_seconds() / static_cast<double>(std::max<int64_t>(1, placement.steps()));
    out << absl::StreamFormat(
        "placement  auto: %d of %d steps went another way than static; gained %.3f s since the group formed (%.3f ms a "
        "step)\n",
        placement.deciding_steps(), placement.steps(), placement.gained_seconds(), each);
  }
  if (now.load.has_micro_batches()) {
    const v1::MicroBatches& cut = now.load.micro_batches();
    out << absl::StreamFormat(
        "micro-batches  auto: cut the rows of %d of %d steps; gained %.3f s since the group formed\n", cut.cut_steps(),
        cut.steps(), cut.gained_seconds());
  }
  if (now.load.workers_size() == 0) {
    out << "workers    none" << std::endl;
    return;
  }
  out << absl::StreamFormat("%-10s %4s %8s %-16s %-9s %8s  %-21s  %s\n", "workers", "rank", "pid", "host", "state",
                            "running", "metrics", "KV blocks used + cached / total");
  for (const v1::WorkerLoad& worker : now.load.workers()) {
    const double used = worker.kv_blocks_total() > 0 ? 100.0 * worker.kv_blocks_used() / worker.kv_blocks_total() : 0;
    out << absl::StreamFormat("%-10s %4d %8d %-16s %-9s %8d  %-21s  %d + %d / %d of %d tokens (%.1f%% used)\n", "",
                              worker.rank(), worker.pid(), worker.host(), worker.state(), worker.running_requests(),
                              worker.metrics_address().empty() ? "none" : worker.metrics_address(),
                              worker.kv_blocks_used(), worker.kv_blocks_cached(), worker.kv_blocks_total(),
                              worker.block_size(), used);
  }
  out.flush();
}

// For probes of containers: one question, which needs no key.
absl::StatusOr<int> AskHealth(Console& console, const StatusFlags& flags) {
  ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, flags.server.Connect());
  ASSIGN_OR_RETURN(const bool serving, client->IsServing(flags.health == "ready" ? "readiness" : ""));
  console.out << (serving ? "" : "not ") << flags.health << std::endl;
  return serving ? kExitOk : kExitFailed;
}

absl::StatusOr<int> RunStatus(Console& console, const StatusFlags& flags) {
  if (!flags.health.empty()) return AskHealth(console, flags);
  const absl::StatusOr<Snapshot> now = LookUntilReady(console, flags);
  if (!now.ok()) {
    if (flags.json) console.out << Dump({{"ready", false}, {"error", ErrorJson(now.status())}}) << std::endl;
    return now.status();
  }
  if (flags.json) {
    console.out << Dump(SnapshotJson(*now)) << std::endl;
  } else {
    PrintTable(console.out, flags.server.server, *now);
  }
  return now->serving ? kExitOk : kExitFailed;
}

}  // namespace

void AddStatusCommand(Command* app) {
  Command* command = app->AddCommand("status", "show the served model, readiness, workers, KV cache and queue");
  auto flags = std::make_shared<StatusFlags>();
  command->flags()->BeginGroup("Output");
  command->flags()
      ->Add("wait=SECONDS", &flags->wait_seconds, "wait up to this many seconds until the server is ready")
      .Range(0.0, 86400.0);
  command->flags()->Add("json", &flags->json, "print one line of JSON");
  command->flags()->AddFunction(
      "health=alive|ready", "",
      [flags](absl::string_view text) {
        flags->health = std::string(text);
        return text == "alive" || text == "ready" ? "" : "must be alive or ready";
      },
      "only ask the health service, which needs no API key: whether the server lives, or can answer; for probes");
  flags->server.AddTo(command->flags());
  command->SetFooter("Exit code 0 when the server is ready (with --health=alive: lives), 1 when it is not.");
  command->SetRun([flags](Console& console) { return RunStatus(console, *flags); });
}

}  // namespace switchyard::cli
