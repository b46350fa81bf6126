#include "server/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/gguf/gguf_file.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/fleet/adapter_list.h"
#include "scheduler/popularity/path_profile.h"
#include "server/observe/otlp_exporter.h"
#include "server/server_flags.h"

namespace switchyard::server {
namespace {

// Returns type and permissions of the file at the path; 0 if there is none.
mode_t ModeOf(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 ? st.st_mode : 0;
}

constexpr size_t kGgufEnding = sizeof(".gguf") - 1;

bool IsFile(const std::string& path) { return S_ISREG(ModeOf(path)); }

class Problems {
 public:
  void Check(bool ok, absl::string_view text) {
    if (!ok) list_.emplace_back(text);
  }
  void Check(const absl::Status& status) { Check(status.ok(), status.message()); }
  void OneOf(absl::string_view flag, absl::string_view value, std::initializer_list<absl::string_view> values,
             absl::string_view expected) {
    Check(std::find(values.begin(), values.end(), value) != values.end(),
          absl::StrCat("--", flag, "=", value, ": must be ", expected));
  }
  // Complains if the flag differs from its default (`otherwise`) where it is not allowed.
  template <class Value>
  void OnlyFor(bool allowed, absl::string_view flag, const Value& value, const Value& otherwise,
               absl::string_view is_for) {
    Check(allowed || value == otherwise, absl::StrCat("--", flag, "=", value, ": is for ", is_for));
  }
  // Checks a range that depends on another flag; the table of flags has the fixed ranges.
  void Range(absl::string_view flag, int value, int low, int high) {
    Check(value >= low && value <= high,
          absl::StrCat("--", flag, "=", value, ": must be within [", low, ", ", high, "]"));
  }
  // Only regular files are accepted: a device or a FIFO might never end.
  void File(absl::string_view flag, const std::string& path) {
    Check(IsFile(path),
          absl::StrCat("--", flag, "=", path, ModeOf(path) != 0 ? ": not a regular file" : ": no such file"));
  }
  absl::Status status() const {
    if (list_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(list_, "\n"));
  }

 private:
  std::vector<std::string> list_;
};

void CheckExpertFlags(const ServerConfig& config, Problems* problems) {
  problems->OneOf("forecast", config.forecast, {"auto", "always", "never"}, "auto, always or never");
  problems->Range("path_length", config.path_length, 1, popularity::kMaxPathLength);
  const bool profiles = !config.profile.empty() || !config.profile_out.empty();
  problems->Check(!profiles || config.forecast != "never",
                  "--forecast=never: nothing is learned then, but a --profile or --profile_out is named");
  problems->Check(!profiles || config.local_workers > 0,
                  "--profile, --profile_out: are of local workers, but --local_workers=0");
  problems->Check(offload::CheckExpertBudget(config.experts));
  problems->Check(!config.experts.automatic() || config.device == "cpu",
                  "--expert_memory=auto: is for CPUs; give a share or a size");
  problems->Check(placement::CheckExpertMemory(config.placement, config.experts.budget));
  problems->Check(offload::CheckColdExperts(config.experts, config.device == "cpu", config.deterministic));
  problems->Check(placement::CheckPlacementSettings(config.placement));
  problems->Check(!config.add_outputs || !config.placement.has_slots(),
                  absl::StrCat("--combine=added with --spare_slots=", config.placement.spare_slots,
                               ": an answer's roundings would follow the replicas"));
  problems->Check(!config.add_outputs || config.device == "cpu",
                  absl::StrCat("--combine=added: for workers on CPUs, but --device=", config.device));
  const offload::ExpertBudgetOptions defaults;
  problems->OnlyFor(!config.experts.empty(), "expert_policy", config.experts.policy, defaults.policy,
                    "--expert_memory, which is not given");
  // Both an expert budget and placements copy experts from a file.
  const bool has_file = !config.experts.empty() || config.placement.has_slots();
  constexpr absl::string_view kIsFor = "--expert_memory, or for --spare_slots";
  problems->OnlyFor(has_file, "expert_file_dir", config.experts.file_dir, defaults.file_dir, kIsFor);
  problems->Check(
      has_file || !(config.experts.copy_bytes_per_second > 0),
      absl::StrCat("--expert_copy_bytes_per_second=", config.experts.copy_bytes_per_second, ": is for ", kIsFor));
}

void CheckDevice(const ServerConfig& config, Problems* problems) {
  problems->OneOf("device", config.device, {"cpu", "cuda"}, "cpu or cuda");
  problems->Check(config.gpu_memory_fraction > 0 && config.gpu_memory_fraction <= 1,
                  absl::StrCat("--gpu_memory_fraction=", config.gpu_memory_fraction, ": must be within (0, 1]"));
  // On CPUs, flags for GPUs must keep their defaults.
  const auto gpu_only = [&](bool is_default, absl::string_view flag) {
    problems->Check(config.device != "cpu" || is_default, absl::StrCat(flag, ": is for GPUs, but --device=cpu"));
  };
  const ServerConfig defaults;
  gpu_only(config.gpu_memory_fraction == defaults.gpu_memory_fraction,
           absl::StrCat("--gpu_memory_fraction=", config.gpu_memory_fraction));
  gpu_only(config.deterministic == defaults.deterministic, "--deterministic");
  gpu_only(config.cuda_graphs == defaults.cuda_graphs, "--cuda_graphs=false");
  problems->OneOf("load_format", config.load_format, {"auto", "dummy"}, "auto or dummy");
  CheckExpertFlags(config, problems);
}

// Checks the join token: without one, every process that reaches the workers' port could join.
void CheckJoining(const ServerConfig& config, Problems* problems) {
  const int elsewhere = config.workers - config.local_workers + config.train_workers - config.local_train_workers;
  problems->Check(
      (rpc::IsLoopback(config.worker_host) && config.api_keys_file.empty()) || elsewhere <= 0 ||
          !config.join_token.empty(),
      absl::StrCat(
          "--join_token_file: missing; with --worker_host=", config.worker_host, " and ", elsewhere,
          " workers from elsewhere whoever reaches the port could join: write a secret of at least 16 bytes to "
          "a file of your own (umask 077; head -c 32 /dev/urandom | base64 >FILE) and give it to the server and to "
          "each worker"));
}

constexpr int kLastPort = 65535;

void FinishPorts(ServerConfig* config, Problems* problems) {
  if (config->port > 0 && config->port <= kLastPort) {
    if (config->admin_port == 0) config->admin_port = config->port + 1;
    if (config->worker_port == 0) config->worker_port = config->port + 2;
    problems->Check(
        std::max(config->admin_port, config->worker_port) <= kLastPort,
        absl::StrCat("--port=", config->port, ": no ports are left after it; give --admin_port and --worker_port"));
  }
  const std::pair<absl::string_view, int> ports[] = {{"port", config->port},
                                                     {"http_port", config->http_port},
                                                     {"admin_port", config->admin_port},
                                                     {"worker_port", config->worker_port},
                                                     {"metrics_port", config->metrics_port}};
  for (const auto& one : ports) {
    for (const auto* other = &one + 1; other != std::end(ports); ++other) {
      problems->Check(one.second <= 0 || one.second != other->second,
                      absl::StrCat("--", one.first, " and --", other->first, " are both ", one.second));
    }
  }
}

// What is reachable from other machines needs TLS, since whoever is on the way would read prompts and keys, and some
// way to know who calls.
void CheckSecurity(const ServerConfig& config, Problems* problems) {
  const bool has_tls = !config.tls_cert.empty();
  const bool knows_clients = !config.api_keys_file.empty() || !config.tls_client_ca.empty();
  const auto check = [&](absl::string_view flag, const std::string& host, bool knows_peers, absl::string_view how) {
    if (rpc::IsLoopback(host) || config.insecure) return;
    constexpr absl::string_view kElsewhere = " on another address than loopback wants ";
    problems->Check(has_tls,
                    absl::StrCat("--", flag, "=", host, ": plaintext", kElsewhere, "--insecure; or give --tls_cert"));
    problems->Check(knows_peers, absl::StrCat("--", flag, "=", host, ": calls without a key", kElsewhere,
                                              "--insecure; or give ", how));
  };
  constexpr absl::string_view kKeys = "--api_keys_file or --tls_client_ca";
  check("host", config.host, knows_clients, kKeys);
  // Certificates tell no roles apart.
  if (config.admin_port != -1) check("admin_host", config.admin_host, !config.api_keys_file.empty(), "--api_keys_file");
  check("worker_host", config.worker_host, /*knows_peers=*/true, "");  // CheckJoining asks for the token
  if (config.metrics_port != -1) check("metrics_host", config.metrics_host, /*knows_peers=*/true, "");
  problems->Check(has_tls == !config.tls_key.empty(), "--tls_cert and --tls_key: one is given without the other");
  for (const auto& [flag, file] :
       {std::pair("client", &config.tls_client_ca), std::pair("worker", &config.tls_worker_ca)}) {
    problems->Check(has_tls || file->empty(),
                    absl::StrCat("--tls_", flag, "_ca=", *file, ": is for --tls_cert, which is not given"));
  }
}

void CheckTracing(const ServerConfig& config, Problems* problems) {
  problems->Check(config.otlp_sample_ratio >= 0 && config.otlp_sample_ratio <= 1,
                  absl::StrCat("--otlp_sample_ratio=", config.otlp_sample_ratio, ": must be within [0, 1]"));
  const ServerConfig defaults;
  problems->OnlyFor(!config.otlp_endpoint.empty(), "otlp_sample_ratio", config.otlp_sample_ratio,
                    defaults.otlp_sample_ratio, "--otlp_endpoint, which is not given");
  if (config.otlp_endpoint.empty()) return;
  const absl::Status status = OtlpExporter::CheckEndpoint(config.otlp_endpoint);
  problems->Check(status.ok(), absl::StrCat("--otlp_endpoint=", config.otlp_endpoint, ": ", status.message()));
}

// Checks the flags of training on serving workers.
void CheckSlices(const ServerConfig& config, Problems* problems) {
  problems->Check(config.train_share >= 0 && config.train_share <= 0.9,
                  absl::StrCat("--train_share=", config.train_share, ": must be within [0, 0.9]"));
  if (config.train_on_serving) {
    problems->Check(config.device == "cpu",
                    absl::StrCat("--train_on_serving: training is on the CPU, but --device=", config.device));
    return;
  }
  const ServerConfig defaults;
  problems->OnlyFor(false, "train_yield_ms", config.train_yield_ms, defaults.train_yield_ms, "--train_on_serving");
  problems->OnlyFor(false, "train_share", config.train_share, defaults.train_share, "--train_on_serving");
}

void CheckTraining(ServerConfig* config, Problems* problems) {
  if (config->train_workers == 0) config->train_workers = config->local_train_workers;
  problems->Check(config->train_workers >= config->local_train_workers,
                  absl::StrCat("--train_workers=", config->train_workers,
                               ": fewer than --local_train_workers=", config->local_train_workers));
  if (config->train_threads == 0 && config->local_train_workers > 0) {
    config->train_threads = std::max(1, UsableCores() / config->local_train_workers);
  }
  CheckSlices(*config, problems);
  const bool trains = config->train_workers > 0 || config->train_on_serving;
  for (const auto& [flag, path, what] :
       {std::tuple("dataset_root", &config->dataset_root, "the dataset root"),
        std::tuple("checkpoint_root", &config->checkpoint_root, "the checkpoint root")}) {
    problems->Check(!trains || !path->empty(), absl::StrCat("--", flag, ": missing; training workers want it"));
    if (path->empty()) continue;
    const absl::Status status = RootDir::Open(*path, what).status();
    // A checkpoint root that cannot be used only disables jobs (TrainingSubsystem reports it), since serving does not
    // need it.
    const bool only_disables_jobs = path == &config->checkpoint_root;
    problems->Check(status.ok() || only_disables_jobs, absl::StrCat("--", flag, ": ", status.message()));
  }
  problems->Check(
      CheckRootsApart("--dataset_root", config->dataset_root, "--checkpoint_root", config->checkpoint_root));
  problems->Check(CheckWritableFolder("--train_offload_dir", config->train_offload_dir));
  problems->Check(config->train_offload_dir.empty() || config->local_train_workers > 0,
                  absl::StrCat("--train_offload_dir=", config->train_offload_dir,
                               ": is for local training workers (--local_train_workers); others have their own"));
}

// Checks the flags of a server without a model.
void CheckNoServing(const ServerConfig& config, Problems* problems) {
  problems->Check(
      config.local_train_workers > 0 || config.train_workers > 0,
      "--model: missing; give the directory of a HuggingFace checkpoint, or a GGUF file; a server that only "
      "trains has --local_train_workers or --train_workers instead");
  constexpr absl::string_view kIsFor = "a server with --model";
  const ServerConfig defaults;
  // (Its default is 1.)
  problems->Check(config.local_workers <= 1,
                  absl::StrCat("--local_workers=", config.local_workers, ": is for ", kIsFor));
  problems->OnlyFor(false, "workers", config.workers, defaults.workers, kIsFor);
  problems->OnlyFor(false, "served_model_name", config.served_model_name, defaults.served_model_name, kIsFor);
  problems->OnlyFor(false, "adapter", config.adapter, defaults.adapter, kIsFor);
  problems->OnlyFor(false, "adapters", config.adapters, defaults.adapters, kIsFor);
  problems->OnlyFor(false, "tokenizer", config.tokenizer, defaults.tokenizer, kIsFor);
  problems->OnlyFor(false, "chat_template", config.chat_template, defaults.chat_template, kIsFor);
  problems->OnlyFor(false, "profile", config.profile, defaults.profile, kIsFor);
  problems->OnlyFor(false, "profile_out", config.profile_out, defaults.profile_out, kIsFor);
  problems->OnlyFor(false, "dtype", config.dtype, defaults.dtype, kIsFor);
  problems->OnlyFor(false, "quantization", config.quantization, defaults.quantization, kIsFor);
  problems->OnlyFor(false, "kv_cache_dtype", config.kv_cache_dtype, defaults.kv_cache_dtype, kIsFor);
  problems->OnlyFor(false, "kv_cache_bytes", config.kv_cache_bytes, defaults.kv_cache_bytes, kIsFor);
  problems->OnlyFor(false, "load_format", config.load_format, defaults.load_format, kIsFor);
  problems->OnlyFor(false, "device", config.device, defaults.device, kIsFor);
  problems->OnlyFor(false, "threads", config.threads, defaults.threads, kIsFor);
  problems->OnlyFor(false, "max_model_len", config.batching.max_model_len, defaults.batching.max_model_len, kIsFor);
  problems->Check(!config.train_on_serving, absl::StrCat("--train_on_serving: is for ", kIsFor));
}

// Checks --adapter and --adapters, as far as that is possible without the model.
void CheckAdapters(const ServerConfig& config, Problems* problems) {
  const auto check_folder = [&](const std::string& flag, const std::string& dir) {
    problems->Check(IsFile(dir + "/adapter_config.json"),
                    absl::StrCat(flag, ": is no directory with an adapter_config.json, as PEFT saves it"));
  };
  if (!config.adapter.empty()) check_folder(absl::StrCat("--adapter=", config.adapter), config.adapter);
  if (!config.adapters.empty()) {
    const absl::StatusOr<std::vector<fleet::AdapterPlace>> places = fleet::ParseAdapterList(config.adapters);
    if (!places.ok()) {
      problems->Check(false, absl::StrCat("--adapters=", config.adapters, ": ", places.status().message()));
    } else {
      for (const fleet::AdapterPlace& each : *places)
        check_folder(absl::StrCat("--adapters: ", each.name, "=", each.dir), each.dir);
    }
    problems->Check(config.adapter.empty(),
                    absl::StrCat("--adapters=", config.adapters, ": goes with no --adapter=", config.adapter,
                                 ", as adapters are of the model as it is; add that one to the list"));
    problems->Check(config.device == "cpu",
                    absl::StrCat("--adapters=", config.adapters, ": is for workers on CPUs so far, not --device=",
                                 config.device, "; --adapter merges one, on any device"));
  }
  for (const auto& [flag, value] : {std::pair("adapter", &config.adapter), std::pair("adapters", &config.adapters)}) {
    if (value->empty()) continue;
    problems->Check(config.local_workers > 0 || config.only_trains,
                    absl::StrCat("--", flag, "=", *value,
                                 ": is of local workers, but --local_workers=0; give it to each switchyard-worker"));
    problems->Check(config.load_format != "dummy",
                    absl::StrCat("--", flag, "=", *value, ": goes with no --load_format=dummy"));
  }
}

}  // namespace

std::string NameOfModel(const std::string& path) {
  std::string given = path;
  while (given.size() > 1 && given.back() == '/') given.pop_back();
  const std::string last = given.substr(given.find_last_of('/') + 1);
  if (IsGgufFile(given) && last.size() > kGgufEnding) {
    const std::optional<GgufSplitName> split = ParseGgufSplitName(last);
    return split.has_value() ? split->prefix : last.substr(0, last.size() - kGgufEnding);
  }
  char buffer[PATH_MAX];
  const std::string real = realpath(path.c_str(), buffer) != nullptr ? buffer : given;
  const std::vector<std::string> parts = absl::StrSplit(real, '/');
  // A symbolic link's own name counts.
  if (!last.empty() && last != "." && last != ".." && last != parts.back()) return last;
  const size_t n = parts.size();
  if (n >= 3 && parts[n - 2] == "snapshots" && absl::StartsWith(parts[n - 3], "models--")) {
    return absl::StrReplaceAll(absl::StripPrefix(parts[n - 3], "models--"), {{"--", "/"}});
  }
  return parts.back();
}

absl::Status ServerConfig::Finish() {
  Problems problems;
  only_trains = model.empty();
  if (only_trains) {
    CheckNoServing(*this, &problems);
    local_workers = workers = 0;
  } else {
    problems.Check(S_ISDIR(ModeOf(model)) || IsGgufFile(model),
                   absl::StrCat("--model=", model, ": ", WhyNoModelDir(model)));
    problems.Check(!S_ISDIR(ModeOf(model)) || IsFile(model + "/config.json"),
                   absl::StrCat("--model=", model, ": ", WhyNoConfig(model)));
  }
  CheckAdapters(*this, &problems);
  for (const FlagProblem& problem : FlagsOfServer(this).OutOfRange(/*given_only=*/false)) {
    problems.Check(false, problem.ToString());
  }
  if (!tokenizer.empty()) problems.File("tokenizer", tokenizer);
  if (!chat_template.empty()) problems.File("chat_template", chat_template);
  if (served_model_name.empty() && !only_trains) served_model_name = NameOfModel(model);
  problems.Range("worker_metrics_port", worker_metrics_port, -1, 65536 - std::max(1, local_workers));
  FinishPorts(this, &problems);
  CheckSecurity(*this, &problems);
  CheckTracing(*this, &problems);
  if (workers == 0) workers = local_workers;
  problems.Check(workers >= 1 || only_trains,
                 "--local_workers=0: then --workers must say how many workers from elsewhere make the group");
  problems.Check(workers >= local_workers,
                 absl::StrCat("--workers=", workers, ": fewer than --local_workers=", local_workers));
  if (threads == 0 && local_workers > 0) {
    threads = std::max(1, UsableCores() / local_workers);
  }
  CheckDevice(*this, &problems);
  CheckTraining(this, &problems);
  CheckJoining(*this, &problems);
  problems.OneOf("dtype", dtype, {"auto", "fp32", "bf16", "fp16", "fp64"}, "one of auto, fp32, bf16, fp16, fp64");
  problems.OneOf("quantization", quantization, {"auto", "none", "int8", "int4"},
                 "one of auto, none, int8, int4 (a checkpoint that is quantized says so itself)");
  problems.OneOf("kv_cache_dtype", kv_cache_dtype, {"auto", "int8", "fp8"}, "one of auto, int8, fp8");
  problems.Range("max_streams_per_client", max_streams_per_client, 0, max_streams);
  problems.Range("max_connections_per_client", max_connections_per_client, 0, max_connections);
  // On loopback all clients have one address, this machine's; keys tell them apart.
  if (max_streams_per_client == 0) {
    max_streams_per_client =
        rpc::IsLoopback(host) && api_keys_file.empty() ? max_streams : std::max(1, max_streams / 2);
  }
  if (max_connections_per_client == 0) max_connections_per_client = std::max(1, max_connections / 2);
  batching::BatchingPolicy checked = batching;
  if (checked.max_model_len == 0) checked.max_model_len = 1 << 20;
  problems.Check(checked.Validate());
  return problems.status();
}

}  // namespace switchyard::server
