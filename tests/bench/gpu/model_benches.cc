// Whole models with random weights: prefill, decode, what of it the device spends waiting for the host, and how often a
// greedy token differs from the one under --deterministic.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/greedy_run.h"
#include "tests/bench/gpu/model_check.h"
#include "tests/bench/gpu/parts.h"
#include "tests/bench/gpu/shapes.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/weights/dummy_weights.h"

namespace switchyard {
namespace {

std::vector<std::vector<int32_t>> Prompts(int64_t count, int64_t length, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> prompts(count);
  uint64_t state = seed;
  for (std::vector<int32_t>& prompt : prompts) {
    for (int64_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<int32_t>((state = SplitMix(state)) % static_cast<uint64_t>(vocab)));
    }
  }
  return prompts;
}

class ModelBench {
 public:
  ModelBench(Bench* bench, const model::ModelConfig& config) : bench_(*bench), config_(config) {}

  // Bench::Measure's.
  absl::Status Run();

 private:
  absl::StatusOr<std::unique_ptr<model::Model>> MakeModel() const;
  GreedyOptions Options(bool graphs, int in_flight) const;
  absl::Status RunPrefills(model::Model* model) const;
  absl::Status RunPrefill(GreedyRun* run, int64_t sequences, int64_t length) const;
  // The tokens of all decodes, which do not depend on graphs or steps in flight.
  absl::StatusOr<std::vector<std::vector<int32_t>>> RunDecode(model::Model* model, int64_t batch, bool graphs,
                                                              int in_flight) const;
  absl::Status RunDecodes(model::Model* model, int64_t batch) const;
  absl::Status CountFlips(model::Model* model) const;
  double BytesOfDecode(int64_t batch, double keys_each, double experts_touched) const;

  Bench& bench_;
  const model::ModelConfig config_;
};

absl::StatusOr<std::unique_ptr<model::Model>> ModelBench::MakeModel() const {
  model::LoadOptions options;
  options.residents.resize(config_.num_experts);
  std::iota(options.residents.begin(), options.residents.end(), 0);
  options.device = bench_.stream().device();
  options.num_threads = bench_.cpu().pool().num_threads();
  absl::StatusOr<model::ModelWeights> weights = model::MakeDummyWeights(config_, std::move(options));
  RETURN_IF_ERROR(weights.status());
  return model::Model::Create(bench_.stream(), config_, DType::kBf16, *std::move(weights), config_.context);
}

GreedyOptions ModelBench::Options(bool graphs, int in_flight) const {
  return {.max_sequences = static_cast<int32_t>(bench_.Pick(32, 3)),
          .context = static_cast<int32_t>(bench_.Pick(2304, 48)),
          .max_rows = static_cast<int32_t>(bench_.Pick(8192, 48)),
          .graphs = graphs,
          .in_flight = in_flight};
}

// The least that a step of decodes must read: every weight but the experts that nobody chose, and the keys and values.
double ModelBench::BytesOfDecode(int64_t batch, double keys_each, double experts_touched) const {
  const model::ModelConfig& c = config_;
  const int64_t layer = c.hidden * c.qkv_width() + c.q_width() * c.hidden + c.num_experts * c.hidden;
  const auto expert = static_cast<double>(3 * c.hidden * c.expert_intermediate);
  const auto dense = static_cast<double>(c.num_layers() * layer + c.vocab_size * c.hidden + batch * c.hidden);
  const auto kv = static_cast<double>(model::KvBytesPerToken(c, DType::kBf16));
  return 2 * (dense + experts_touched * expert) + static_cast<double>(batch) * keys_each * kv;
}

absl::Status ModelBench::RunPrefill(GreedyRun* run, int64_t sequences, int64_t length) const {
  std::vector<double> seconds;
  StepTimes times;
  for (int i = 0; i < static_cast<int>(bench_.Pick(6, 2)); ++i) {  // the first warms up
    ASSIGN_OR_RETURN(times, run->Prefill(Prompts(sequences, length, config_.vocab_size, i)));
    if (i > 0) seconds.push_back(times.seconds * static_cast<double>(times.steps));
  }
  std::sort(seconds.begin(), seconds.end());
  const model::ModelConfig& c = config_;
  const auto rows = static_cast<double>(sequences * length);
  const auto a_row =
      static_cast<double>(c.num_layers() * (c.hidden * c.qkv_width() + c.q_width() * c.hidden +
                                            c.num_experts * c.hidden + c.top_k * 3 * c.hidden * c.expert_intermediate));
  const double attention =
      4.0 * static_cast<double>(c.q_width() * c.num_layers()) * static_cast<double>(length + 1) / 2;
  bench_.Emit(
      {{"kind", "prefill"},
       {"model", c.model_type},
       {"sequences", sequences},
       {"rows", sequences * length},
       {"flops", rows * (2 * a_row + attention) + 2.0 * static_cast<double>(sequences * c.vocab_size * c.hidden)},
       {"seconds", bench_.SecondsOrNull(seconds[seconds.size() / 2])}});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ModelBench::RunDecode(model::Model* model, int64_t batch, bool graphs,
                                                                        int in_flight) const {
  std::unique_ptr<GreedyRun> run;
  ASSIGN_OR_RETURN(run, GreedyRun::Create(model, bench_.stream(), Options(graphs, in_flight)));
  const int64_t length = bench_.Pick(1024, 9), warm = 4, steps = bench_.Pick(bench_.options().quick ? 32 : 128, 4);
  RETURN_IF_ERROR(run->Prefill(Prompts(batch, length, config_.vocab_size, 1)).status());
  RETURN_IF_ERROR(run->Decode(warm).status());
  StepTimes times;
  ASSIGN_OR_RETURN(times, run->Decode(steps));
  const double keys = static_cast<double>(length + warm) + static_cast<double>(steps + 1) / 2;
  bench_.Emit({{"kind", "decode"},
               {"model", config_.model_type},
               {"batch", batch},
               {"keys", keys},
               {"graphs", graphs},
               {"in_flight", in_flight},
               {"steps", times.steps},
               {"experts_touched", times.experts_touched},
               {"bytes", BytesOfDecode(batch, keys, times.experts_touched)},
               {"seconds", bench_.SecondsOrNull(times.seconds)},
               {"device_seconds", bench_.SecondsOrNull(times.device_seconds)},
               {"device_busy", bench_.SecondsOrNull(times.device_busy)},
               {"host_seconds", bench_.SecondsOrNull(times.host_seconds)}});
  return run->tokens();
}

absl::Status ModelBench::RunDecodes(model::Model* model, int64_t batch) const {
  std::vector<std::vector<int32_t>> tokens, again;
  ASSIGN_OR_RETURN(tokens, RunDecode(model, batch, /*graphs=*/true, /*in_flight=*/2));
  ASSIGN_OR_RETURN(again, RunDecode(model, batch, /*graphs=*/true, /*in_flight=*/1));
  if (again != tokens) return absl::InternalError("tokens depend on steps in flight");
  // Without graphs there is no padding, and so perhaps another kernel of a dense product.
  return RunDecode(model, batch, /*graphs=*/false, /*in_flight=*/2).status();
}

// Both go on from their own tokens, so a sequence counts up to and with its first difference.
absl::Status ModelBench::CountFlips(model::Model* model) const {
  const int64_t wanted = bench_.Pick(10000, 10), length = bench_.Pick(64, 5), steps = bench_.Pick(320, 6);
  const int64_t batch = bench_.Pick(32, 3);
  const TestStream fixed(1, 0, {.deterministic = true});
  std::unique_ptr<GreedyRun> free_run, fixed_run;
  GreedyOptions options = Options(/*graphs=*/true, /*in_flight=*/2);
  options.context = static_cast<int32_t>(length + steps + 1);
  ASSIGN_OR_RETURN(free_run, GreedyRun::Create(model, bench_.stream(), options));
  ASSIGN_OR_RETURN(fixed_run, GreedyRun::Create(model, fixed.get(), options));
  int64_t compared = 0, flips = 0;
  for (uint64_t round = 0; compared < wanted && round < 50; ++round) {
    const auto prompts = Prompts(batch, length, config_.vocab_size, 100 + round);
    for (GreedyRun* run : {fixed_run.get(), free_run.get()}) {
      RETURN_IF_ERROR(run->Prefill(prompts).status());
      RETURN_IF_ERROR(run->Decode(steps - 1).status());
    }
    for (int64_t s = 0; s < batch; ++s) {
      const auto [a, b] =
          std::mismatch(fixed_run->tokens()[s].begin(), fixed_run->tokens()[s].end(), free_run->tokens()[s].begin());
      const bool differs = a != fixed_run->tokens()[s].end();
      compared += a - fixed_run->tokens()[s].begin() + (differs ? 1 : 0);
      flips += differs ? 1 : 0;
    }
  }
  nlohmann::json rate = nullptr;
  if (!bench_.options().tiny) rate = static_cast<double>(flips) / static_cast<double>(compared);
  bench_.Emit(
      {{"kind", "flips"}, {"model", config_.model_type}, {"compared", compared}, {"flips", flips}, {"rate", rate}});
  return absl::OkStatus();
}

absl::Status ModelBench::RunPrefills(model::Model* model) const {
  std::unique_ptr<GreedyRun> run;
  ASSIGN_OR_RETURN(run, GreedyRun::Create(model, bench_.stream(), Options(true, 2)));
  RETURN_IF_ERROR(RunPrefill(run.get(), 1, bench_.Pick(512, 7)));
  RETURN_IF_ERROR(RunPrefill(run.get(), 1, bench_.Pick(2048, 20)));
  return RunPrefill(run.get(), bench_.Pick(4, 2), bench_.Pick(2048, 20));
}

absl::Status ModelBench::Run() {
  const auto measure = [&](const std::string& what, absl::FunctionRef<absl::Status()> run) {
    return bench_.Measure(absl::StrCat(config_.model_type, " ", what), run);
  };
  RETURN_IF_ERROR(measure("logits", [&] { return CheckModel(bench_, config_); }));
  std::unique_ptr<model::Model> model;
  RETURN_IF_ERROR(measure("weights", [&]() -> absl::Status {
    ASSIGN_OR_RETURN(model, MakeModel());
    return absl::OkStatus();
  }));
  if (model == nullptr) return absl::OkStatus();
  for (const int64_t batch : {bench_.Pick(1, 1), bench_.Pick(32, 3), bench_.Pick(8, 2)}) {
    RETURN_IF_ERROR(measure(absl::StrCat("decode ", batch), [&] { return RunDecodes(model.get(), batch); }));
  }
  RETURN_IF_ERROR(measure("prefill", [&] { return RunPrefills(model.get()); }));
  return measure("flips", [&] { return CountFlips(model.get()); });
}

}  // namespace

absl::Status BenchModels(Bench* bench) {
  for (const model::ModelConfig& config : BenchModels(bench->options().tiny)) {
    RETURN_IF_ERROR(ModelBench(bench, config).Run());
  }
  return absl::OkStatus();
}

}  // namespace switchyard
