#include "server/jobs/spec/model_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "server/jobs/api/job_convert.h"

namespace switchyard::server {
namespace {

constexpr int kCannotRun = 127;  // exec failed
constexpr absl::Duration kReapPoll = absl::Milliseconds(2);
constexpr int64_t kStopPollMs = 50;

// Returns a file with these bytes, which has no name.
absl::StatusOr<UniqueFd> FileOf(absl::string_view bytes) {
  UniqueFd file(memfd_create("spec", MFD_CLOEXEC));
  if (file.get() >= 0 && write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
      lseek(file.get(), 0, SEEK_SET) == 0) {
    return file;
  }
  return absl::UnavailableError(absl::StrCat("no file in memory: ", std::strerror(errno)));
}

// Starts a child whose standard input and output these descriptors are.
absl::StatusOr<pid_t> Spawn(std::vector<std::string> args, int input, int output) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t server = getpid();
  // Between fork and exec only async-signal-safe calls are allowed (as in local_fleet.cc).
  const pid_t pid = fork();
  if (pid < 0) return absl::UnavailableError(absl::StrCat("cannot fork: ", std::strerror(errno)));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != server) _exit(1);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0) _exit(kCannotRun);
    execv(argv[0], argv.data());
    _exit(kCannotRun);
  }
  return pid;
}

// Waits for the child, kills it at `deadline`, and returns how it ended.
std::string Reap(pid_t pid, absl::Time deadline) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (absl::Now() >= deadline) {
      kill(pid, SIGKILL);
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
      break;
    }
    absl::SleepFor(kReapPoll);
  }
  if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
  return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
}

// Reads the first line from the pipe, or everything if it ends without a newline.
absl::StatusOr<std::string> ReadLine(int fd, const ModelCheckOptions& options, absl::Time deadline) {
  std::string text;
  while (text.find('\n') == std::string::npos) {
    struct pollfd wait = {fd, POLLIN, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0) return absl::UnavailableError("it gave no answer in time");
    if (options.stopping && options.stopping()) return absl::UnavailableError("the server stops");
    const int ready = poll(&wait, 1, static_cast<int>(std::min(left, kStopPollMs)));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    char bytes[4096];
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat("its answer cannot be read: ", std::strerror(errno)));
    if (count == 0) break;
    text.append(bytes, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > options.max_answer_bytes) {
      return absl::UnavailableError(absl::StrCat("its answer is longer than ", options.max_answer_bytes, " bytes"));
    }
  }
  return text;
}

absl::StatusOr<TrainedModelFacts> Ask(const ModelCheckOptions& options, const jobs::JobSpec& spec) {
  ASSIGN_OR_RETURN(const UniqueFd spec_file, FileOf(EncodeSpec(spec)));
  // Serving workers have their models in memory beside the job.
  const int ranks = options.workers_are_local && !spec.on_serving_workers ? spec.workers : 0;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::UnavailableError(absl::StrCat("no pipe: ", std::strerror(errno)));
  const absl::Cleanup close_read = [fd = ends[0]] { close(fd); };
  const absl::Time deadline = absl::Now() + options.limit;
  const absl::StatusOr<pid_t> pid =
      Spawn({options.binary, "--check_job", absl::StrCat("--checkpoint_root=", options.checkpoint_root),
             absl::StrCat("--train_offload_dir=", options.offload_dir), absl::StrCat("--check_ranks=", ranks)},
            spec_file.get(), ends[1]);
  close(ends[1]);
  RETURN_IF_ERROR(pid.status());
  const absl::StatusOr<std::string> text = ReadLine(ends[0], options, deadline);
  const bool whole = text.ok() && text->find('\n') != std::string::npos;
  // After a whole line, or an error, the child is killed at once.
  const std::string end = Reap(*pid, text.ok() && !whole ? deadline : absl::InfinitePast());
  RETURN_IF_ERROR(text.status());
  if (whole) return ParseModelCheckLine(text->substr(0, text->find('\n')));
  return absl::UnavailableError(absl::StrCat("it ended without an answer: ", end,
                                             end == absl::StrCat("exit code ", kCannotRun) ? " (cannot be run)" : ""));
}

constexpr int kMaxDepth = 64;
constexpr int kMaxKeys = 4096;
constexpr int64_t kMost = int64_t{1} << 32;

// The architectures of workers/model/families; workers refuse models of these that they cannot train.
constexpr absl::string_view kGpt2Moe = "Gpt2MoeForCausalLM";
constexpr absl::string_view kArchitectures[] = {kGpt2Moe, "MixtralForCausalLM", "OlmoeForCausalLM",
                                                "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"};

class Config {
 public:
  explicit Config(const nlohmann::json& json) : json_(json) {}

  // Returns the first of `keys` that exists; without any, `otherwise` unless that is negative (an error).
  absl::StatusOr<int64_t> Whole(std::initializer_list<const char*> keys, int64_t otherwise) const {
    for (const char* key : keys) {
      const auto it = json_.find(key);
      if (it == json_.end() || it->is_null()) continue;
      if (const std::optional<int64_t> number = IntegerIn(*it, 0, kMost)) return *number;
      return absl::InvalidArgumentError(
          absl::StrCat("config.json: ", key, ": ", Quote(it->dump()), " is no whole number in [0, ", kMost, "]"));
    }
    if (otherwise >= 0) return otherwise;
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", *keys.begin(), ": missing"));
  }
  bool Says(const char* key, const char* value) const {
    const auto it = json_.find(key);
    return it != json_.end() && it->is_string() && it->get<std::string>() == value;
  }
  bool Flag(const char* key) const {
    const auto it = json_.find(key);
    return it != json_.end() && it->is_boolean() && it->get<bool>();
  }

 private:
  const nlohmann::json& json_;
};

absl::StatusOr<std::string> Architecture(const nlohmann::json& json) {
  const auto list = json.find("architectures");
  if (list == json.end() || !list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return absl::InvalidArgumentError("config.json: architectures: a list of one name is wanted");
  }
  const std::string name = (*list)[0].get<std::string>();
  if (std::find(std::begin(kArchitectures), std::end(kArchitectures), name) != std::end(kArchitectures)) return name;
  std::string known;
  for (const absl::string_view one : kArchitectures) absl::StrAppend(&known, known.empty() ? "" : ", ", one);
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: architectures: ", Quote(name), " is unknown; known are ", known));
}

// Counts attention and experts of every layer, embedding and head; ignores norms and routers, which are small.
absl::StatusOr<double> CountParameters(const Config& config, const TrainedModelFacts& facts) {
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, shared = 0, dense = 0, step = 0;
  ASSIGN_OR_RETURN(hidden, config.Whole({"hidden_size"}, -1));
  ASSIGN_OR_RETURN(layers, config.Whole({"num_hidden_layers"}, -1));
  ASSIGN_OR_RETURN(heads, config.Whole({"num_attention_heads"}, -1));
  ASSIGN_OR_RETURN(kv_heads, config.Whole({"num_key_value_heads"}, heads));
  ASSIGN_OR_RETURN(head_dim, config.Whole({"head_dim"}, heads > 0 ? hidden / heads : 0));
  ASSIGN_OR_RETURN(width, config.Whole({"moe_intermediate_size", "intermediate_size"}, -1));
  ASSIGN_OR_RETURN(shared, config.Whole({"shared_expert_intermediate_size"}, 0));
  ASSIGN_OR_RETURN(dense, config.Whole({"intermediate_size"}, width));
  ASSIGN_OR_RETURN(step, config.Whole({"decoder_sparse_step"}, 1));
  const int64_t sparse = step > 0 ? layers / step : 0;  // layers with experts
  const double matrices = facts.architecture == kGpt2Moe ? 2 : 3;
  const auto h = static_cast<double>(hidden);
  const double attention = 2 * h * static_cast<double>(head_dim) * static_cast<double>(heads + kv_heads);
  const double experts = static_cast<double>(facts.experts) * static_cast<double>(width) + static_cast<double>(shared);
  const double ffn =
      static_cast<double>(sparse) * experts + static_cast<double>(layers - sparse) * static_cast<double>(dense);
  const double ends = (config.Flag("tie_word_embeddings") ? 1 : 2) * h * static_cast<double>(facts.vocab);
  return static_cast<double>(layers) * attention + matrices * h * ffn + ends;
}

}  // namespace

CheckModelFn AskWorkerProgram(ModelCheckOptions options) {
  return [options = std::move(options)](const jobs::JobSpec& spec) {
    absl::StatusOr<TrainedModelFacts> facts = Ask(options, spec);
    if (!absl::IsUnavailable(facts.status())) return facts;
    return absl::StatusOr<TrainedModelFacts>(
        absl::UnavailableError(absl::StrCat(options.binary, " --check_job: ", facts.status().message())));
  };
}

absl::StatusOr<TrainedModelFacts> ParseModelCheckLine(absl::string_view line) {
  const nlohmann::json json = ParseStrictJson("answer", line, {}).value_or(nullptr);
  const auto has = [&](const char* key, bool (nlohmann::json::*is)() const) {
    return json.is_object() && json.contains(key) && (json[key].*is)();
  };
  using Json = nlohmann::json;
  if (has("code", &Json::is_number_integer) && has("error", &Json::is_string)) {
    const auto code = static_cast<absl::StatusCode>(json["code"].get<int>());
    if (code == absl::StatusCode::kOk) return absl::UnavailableError("its answer is an error without a code");
    return absl::Status(code, json["error"].get<std::string>());
  }
  if (!has("architecture", &Json::is_string) || !has("context", &Json::is_number_integer) ||
      !has("vocab", &Json::is_number_integer) || !has("experts", &Json::is_number_integer) ||
      !has("router_bias", &Json::is_boolean) || !has("parameters", &Json::is_number)) {
    return absl::UnavailableError(absl::StrCat("its answer is no check of a model: ", Quote(line)));
  }
  const auto count = [&](const char* key) { return has(key, &Json::is_number) ? json[key].get<double>() : 0; };
  return TrainedModelFacts{.architecture = json["architecture"].get<std::string>(),
                           .context = json["context"].get<int64_t>(),
                           .vocab = json["vocab"].get<int64_t>(),
                           .experts = json["experts"].get<int64_t>(),
                           .router_bias = json["router_bias"].get<bool>(),
                           .parameters = json["parameters"].get<double>(),
                           .frozen = count("frozen"),
                           .adapters = count("adapters")};
}

absl::StatusOr<TrainedModelFacts> ReadModelFacts(absl::string_view config_json) {
  nlohmann::json json;
  const std::optional<JsonFault> fault = ReadJson(config_json, LenientJson(kMaxDepth, kMaxKeys), &json);
  if (fault && fault->kind != JsonFault::Kind::kText) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", fault->depth, " levels and ", fault->keys,
                                                   " keys, at most ", kMaxDepth, " and ", kMaxKeys));
  }
  if (fault || !json.is_object()) return absl::InvalidArgumentError("config.json: is no JSON object");
  TrainedModelFacts facts;
  ASSIGN_OR_RETURN(facts.architecture, Architecture(json));
  const Config config(json);
  ASSIGN_OR_RETURN(facts.context, config.Whole({"max_position_embeddings"}, -1));
  ASSIGN_OR_RETURN(facts.vocab, config.Whole({"vocab_size"}, -1));
  ASSIGN_OR_RETURN(facts.experts, config.Whole({"num_local_experts", "num_experts"}, -1));
  facts.router_bias = facts.architecture == kGpt2Moe && config.Says("topk_method", "noaux_tc");
  ASSIGN_OR_RETURN(facts.parameters, CountParameters(config, facts));
  return facts;
}

}  // namespace switchyard::server
