// switchyard bench: how fast the server answers under load, as a client sees it.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/commands/bench_load.h"
#include "clients/cli/commands/bench_report.h"
#include "clients/cli/json.h"
#include "clients/cli/request_lines.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using v1::GenerateRequest;

struct BenchFlags {
  ServerFlags server;
  RequestFlags<GenerateRequest> request;
  double rate = 0;
  int concurrency = 0;
  int num_requests = 0;
  double duration_seconds = 0;
  int prompt_tokens = 128;
  int max_tokens = 64;
  bool stop_at_eos = false;
  uint64_t seed = 0;
  std::string input;
  bool json = false;
};

absl::StatusOr<LoadSpec> MakeSpec(const BenchFlags& flags) {
  if (flags.rate > 0 && flags.concurrency > 0)
    return BadInput("--rate (open loop) and --concurrency (closed loop) exclude each other");
  LoadSpec spec;
  spec.rate_per_second = flags.rate;
  spec.concurrency = std::max(flags.concurrency, 1);
  spec.num_requests = flags.num_requests;
  if (flags.duration_seconds > 0) spec.duration = absl::Seconds(flags.duration_seconds);
  if (spec.num_requests == 0 && flags.duration_seconds <= 0) spec.num_requests = 32;
  spec.seed = flags.seed;
  return spec;
}

// The requests of --input, each line once, used in turn.
absl::StatusOr<std::vector<GenerateRequest>> ReadRequests(Console& console, const std::string& path,
                                                          const Json& defaults) {
  ASSIGN_OR_RETURN(const std::shared_ptr<std::istream> in, OpenInput(console, path));
  std::vector<GenerateRequest> requests;
  std::string line;
  for (int number = 1; std::getline(*in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<GenerateRequest> request = RequestFromLine<GenerateRequest>(line, defaults);
    if (!request.ok()) return BadInput(absl::StrCat("line ", number, ": ", request.status().message()));
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return BadInput(absl::StrCat("--input=", path, ": has no requests"));
  return requests;
}

// Prompts of random tokens, the model's end-of-sequence tokens left out; the same for the same seed and index.
class RandomPrompts {
 public:
  RandomPrompts(const v1::GetModelInfoResponse& model, int length, uint64_t seed)
      : vocab_size_(model.vocab_size()),
        eos_(model.eos_token_ids().begin(), model.eos_token_ids().end()),
        length_(length),
        seed_(seed) {}

  void Fill(int index, GenerateRequest* request) const {
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<uint64_t>(index) + 1);
    auto* ids = request->mutable_token_ids()->mutable_ids();
    while (ids->size() < length_) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size_));
      if (std::find(eos_.begin(), eos_.end(), id) == eos_.end()) ids->Add(id);
    }
  }

 private:
  const int32_t vocab_size_;
  const std::vector<int32_t> eos_;
  const int length_;
  const uint64_t seed_;
};

absl::Status CheckLengths(const BenchFlags& flags, const v1::GetModelInfoResponse& model) {
  if (model.vocab_size() <= model.eos_token_ids_size())
    return absl::FailedPreconditionError("the model has no token to make prompts of");
  if (flags.prompt_tokens + flags.max_tokens <= model.max_model_len()) return absl::OkStatus();
  return BadInput(absl::StrCat("--prompt_tokens=", flags.prompt_tokens, " + --max_tokens=", flags.max_tokens,
                               " > the model's context of ", model.max_model_len(), " tokens"));
}

std::string SpecText(const LoadSpec& spec) {
  return spec.rate_per_second > 0
             ? absl::StrFormat("open loop, %g requests/s, seed %d", spec.rate_per_second, spec.seed)
             : absl::StrFormat("closed loop, %d at once, seed %d", spec.concurrency, spec.seed);
}

int Measure(Console& console, const BenchFlags& flags, client::Client* client, const LoadSpec& spec,
            const std::function<GenerateRequest(int)>& make_request) {
  console.err << "bench: " << SpecText(spec) << std::endl;
  const BenchReport report = MakeReport(RunLoad(client, spec, make_request));
  if (flags.json) {
    Json out = {{"mode", spec.rate_per_second > 0 ? "open" : "closed"},
                {"rate", spec.rate_per_second},
                {"concurrency", spec.concurrency},
                {"prompt_tokens", flags.prompt_tokens},
                {"max_tokens", flags.max_tokens},
                {"seed", spec.seed}};
    out.update(ReportJson(report));
    console.out << Dump(out) << std::endl;
  } else {
    PrintReport(report, console.out);
  }
  return report.errors.empty() ? kExitOk : kExitFailed;
}

absl::StatusOr<int> RunBench(Console& console, const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const LoadSpec spec, MakeSpec(flags));
  ASSIGN_OR_RETURN(Json defaults, flags.request.Given());
  defaults["max_tokens"] = flags.max_tokens;
  defaults["ignore_eos"] = !flags.stop_at_eos;
  std::vector<GenerateRequest> given;
  if (!flags.input.empty()) {
    ASSIGN_OR_RETURN(given, ReadRequests(console, flags.input, defaults));
  }
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  if (!given.empty()) {
    return Measure(console, flags, client.get(), spec,
                   [&given](int index) { return given[static_cast<size_t>(index) % given.size()]; });
  }
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse model, client->GetModelInfo());
  RETURN_IF_ERROR(CheckLengths(flags, model));
  defaults["token_ids"] = Json::array();  // the place of the prompts
  ASSIGN_OR_RETURN(const GenerateRequest base, BuildRequest<GenerateRequest>(defaults));
  const RandomPrompts prompts(model, flags.prompt_tokens, flags.seed);
  return Measure(console, flags, client.get(), spec, [&base, &prompts](int index) {
    GenerateRequest request = base;
    prompts.Fill(index, &request);
    return request;
  });
}

void AddLoadFlags(BenchFlags* values, FlagSet* flags) {
  flags->BeginGroup("Load");
  flags->Add("rate=PER_SECOND", &values->rate, "open loop: Poisson arrivals, requests per second")
      .Range(0.0, 1e6)
      .NoDefault();
  flags
      ->Add("concurrency", &values->concurrency,
            "closed loop: requests under way at once (default 1, when there is no --rate)")
      .Range(1, 4096)
      .NoDefault();
  flags->Add("num_requests", &values->num_requests, "requests in all (default 32, when there is no --duration)")
      .Range(1, 10'000'000)
      .NoDefault();
  flags->Add("duration=SECONDS", &values->duration_seconds, "no new requests after this many seconds")
      .Range(0.001, 1e6)
      .NoDefault();
  flags->Add("prompt_tokens", &values->prompt_tokens, "length of the random prompts, in tokens").Range(1, 1 << 20);
  flags->Add("max_tokens", &values->max_tokens, "tokens to generate for each request").Range(1, 1 << 20);
  flags->Add("stop_at_eos", &values->stop_at_eos,
             "let the model end earlier (default: requests ignore end-of-sequence tokens)");
  flags->Add("seed", &values->seed, "seed of arrivals and prompts; the same seed gives the same load");
  flags->Add(
      "input=FILE", &values->input,
      "file of JSON lines with requests, as for generate, used in turn; - = standard input (default: random prompts)");
  flags->Add("json", &values->json, "print one line of JSON; times in seconds");
}

}  // namespace

void AddBenchCommand(Command* app) {
  Command* command =
      app->AddCommand("bench", "load with open-loop arrivals or a fixed concurrency; latency percentiles and tokens/s");
  auto flags = std::make_shared<BenchFlags>();
  AddLoadFlags(flags.get(), command->flags());
  flags->request.AddTo(command->flags(), {"text", "token_ids", "messages", "tools", "add_generation_prompt",
                                          "template_args", "template_args_json", "max_tokens", "ignore_eos", "seed",
                                          "request_id", "allow_special", "add_special_tokens"});
  flags->server.AddTo(command->flags());
  command->SetFooter(
      "Examples:\n"
      "  switchyard bench --rate=4 --duration=30 --prompt_tokens=256 --max_tokens=64\n"
      "  switchyard bench --concurrency=16 --num_requests=64 --json\n"
      "Open-loop times count from the planned arrival.  Exit code 1 when a request failed.");
  command->SetRun([flags](Console& console) { return RunBench(console, *flags); });
}

}  // namespace switchyard::cli
