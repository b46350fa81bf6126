#include "tests/bench/gpu/model_check.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/forward/model.h"
#include "workers/model/runner/batch_upload.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

constexpr size_t kLayers = 2;
constexpr int32_t kTokens = 12;
constexpr int32_t kBlockSize = 16;

// [kTokens, V]
absl::StatusOr<Tensor> Logits(const Stream& stream, const model::ModelConfig& config) {
  model::LoadOptions options;
  options.residents.resize(config.num_experts);
  std::iota(options.residents.begin(), options.residents.end(), 0);
  options.device = stream.device();
  absl::StatusOr<model::ModelWeights> weights = model::MakeDummyWeights(config, std::move(options));
  RETURN_IF_ERROR(weights.status());
  std::unique_ptr<model::Model> model;
  ASSIGN_OR_RETURN(model, model::Model::Create(stream, config, DType::kBf16, *std::move(weights), kTokens));
  absl::StatusOr<model::KvCache> cache = model::KvCache::Create(
      config, DType::kBf16, kBlockSize, model::KvBytesPerToken(config, DType::kBf16) * kBlockSize, stream.device());
  RETURN_IF_ERROR(cache.status());
  const std::vector<int32_t> blocks = {0};
  model::Batch batch;
  for (int32_t i = 0; i < kTokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>((i * 7919 + 11) % config.vocab_size));
    batch.rope_rows.push_back(model->rope().RowOf(i, kTokens));
    batch.logit_rows.push_back(i);
  }
  batch.sequences.push_back({.row_begin = 0, .num_query = kTokens, .start_pos = 0, .block_table = blocks});
  model::BatchUpload upload;
  IntUpload ints;
  if (!stream.device().is_cpu()) {
    const ops::SequenceLimits limits = {.sequences = 1, .rows = kTokens, .blocks = 1};
    ASSIGN_OR_RETURN(upload, model::BatchUpload::Create(stream.device(), limits));
    ASSIGN_OR_RETURN(ints, IntUpload::Create(stream.device(), model::BatchUpload::CountsOf(limits)));
    RETURN_IF_ERROR(ints.Begin(stream));
    RETURN_IF_ERROR(upload.Send(stream, &ints, cache->layer(0), &batch));
  }
  const std::unique_ptr<comm::Communicator> comm = comm::MakeSoloCommunicator();
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(static_cast<int>(config.num_experts), 1);
  const pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({});
  Tensor logits(DType::kF32, {kTokens, config.vocab_size});
  const auto sink = [&](int64_t first, const TensorView& rows) -> absl::Status {
    Tensor copy;
    ASSIGN_OR_RETURN(copy, CopyToHost(stream, rows));
    return CopyTensor(Stream::OnCpu(&stream.pool()), copy, logits.view().Rows(first, rows.dim(0)));
  };
  moe::MoeStats stats;
  const moe::MoeContext moe = {
      .stream = &stream, .comm = comm.get(), .layout = &layout, .schedule = &schedule, .stats = &stats};
  const model::StageIn in = {.batch = &batch, .moe = &moe, .logits = model::LogitsSink(sink)};
  RETURN_IF_ERROR(model->Forward(in, model->all_layers(), &*cache, nullptr).status());
  RETURN_IF_ERROR(Synchronize(stream));
  return logits;
}

}  // namespace

absl::Status CheckModel(const Bench& bench, const model::ModelConfig& config) {
  model::ModelConfig shallow = config;
  shallow.layers.resize(std::min(shallow.layers.size(), kLayers));
  Tensor got, want;
  ASSIGN_OR_RETURN(got, Logits(bench.stream(), shallow));
  ASSIGN_OR_RETURN(want, Logits(bench.cpu(), shallow));
  std::vector<double> differences;
  for (int64_t row = 0; row < kTokens; ++row) {
    Difference difference;
    difference.AddRow(got, want, row);
    RETURN_IF_ERROR(difference.Check(absl::StrCat(config.model_type, ": logits of row ", row), 0.5));
    differences.push_back(difference.relative());
  }
  std::nth_element(differences.begin(), differences.begin() + kTokens / 2, differences.end());
  const double median = differences[kTokens / 2];
  bench.Emit(
      {{"kind", "checked"}, {"model", config.model_type}, {"layers", shallow.layers.size()}, {"median", median}});
  if (median <= 0.02) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(config.model_type, ": logits differ from the CPU's by ", median,
                                          " of their norm (median of the rows), limit 0.02"));
}

}  // namespace switchyard
