#include "tests/workers/model/decode_logits.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/batch_upload.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/tensor/copy.h"

namespace switchyard::model {
namespace {

// The steps of one call.
class DecodeSteps {
 public:
  DecodeSteps(const Stream& stream, Model* model, const DecodeLogitsOptions& options,
              const std::vector<std::vector<int32_t>>& sequences)
      : stream_(stream),
        model_(*model),
        options_(options),
        sequences_(sequences),
        layout_(moe::ExpertLayout::Contiguous(static_cast<int>(model->config().num_experts), 1)),
        schedule_(pipeline::BuildExpertParallel({.shared_expert = model->config().shared_intermediate > 0})) {}

  absl::StatusOr<Tensor> Run();

 private:
  absl::Status MakeCache();
  void Add(size_t sequence, int64_t begin, int64_t count);
  // Runs and clears the batch.  logits: [wanted rows, V], receives them.
  absl::Status RunBatch(const TensorView* logits);

  const Stream& stream_;
  Model& model_;
  const DecodeLogitsOptions& options_;
  const std::vector<std::vector<int32_t>>& sequences_;
  const moe::ExpertLayout layout_;
  const pipeline::MoeSchedule schedule_;
  const std::unique_ptr<comm::Communicator> comm_ = comm::MakeSoloCommunicator();
  std::vector<std::vector<int32_t>> blocks_;  // of each sequence
  absl::StatusOr<KvCache> cache_ = absl::InternalError("not made yet");
  IntUpload ints_;
  BatchUpload upload_;
  Batch batch_;
};

absl::Status DecodeSteps::MakeCache() {
  int32_t num_blocks = 0;
  size_t most = 0;
  for (const std::vector<int32_t>& tokens : sequences_) {
    blocks_.emplace_back((tokens.size() + static_cast<size_t>(options_.block_size) - 1) /
                         static_cast<size_t>(options_.block_size));
    std::iota(blocks_.back().rbegin(), blocks_.back().rend(), num_blocks);  // falling: tables are no ranges
    num_blocks += static_cast<int32_t>(blocks_.back().size());
    most = std::max(most, blocks_.back().size());
  }
  const int64_t block_bytes = KvBytesPerToken(model_.config(), model_.dtype()) * options_.block_size;
  cache_ =
      KvCache::Create(model_.config(), model_.dtype(), options_.block_size, block_bytes * num_blocks, stream_.device());
  RETURN_IF_ERROR(cache_.status());
  if (stream_.device().is_cpu()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(sequences_.size());
  const ops::SequenceLimits limits = {
      .sequences = count, .rows = std::max(options_.chunk, count), .blocks = static_cast<int64_t>(most)};
  ASSIGN_OR_RETURN(upload_, BatchUpload::Create(stream_.device(), limits));
  ASSIGN_OR_RETURN(ints_, IntUpload::Create(stream_.device(), BatchUpload::CountsOf(limits)));
  return absl::OkStatus();
}

void DecodeSteps::Add(size_t sequence, int64_t begin, int64_t count) {
  const std::vector<int32_t>& tokens = sequences_[sequence];
  batch_.sequences.push_back({.row_begin = static_cast<int64_t>(batch_.tokens.size()),
                              .num_query = static_cast<int32_t>(count),
                              .start_pos = static_cast<int32_t>(begin),
                              .block_table = blocks_[sequence]});
  for (int64_t i = begin; i < begin + count; ++i) {
    batch_.tokens.push_back(tokens[static_cast<size_t>(i)]);
    batch_.rope_rows.push_back(model_.rope().RowOf(i, static_cast<int64_t>(tokens.size())));
  }
}

absl::Status DecodeSteps::RunBatch(const TensorView* logits) {
  if (logits != nullptr) {
    batch_.logit_rows.resize(batch_.tokens.size());
    std::iota(batch_.logit_rows.begin(), batch_.logit_rows.end(), 0);
  }
  if (!stream_.device().is_cpu()) {
    RETURN_IF_ERROR(ints_.Begin(stream_));
    RETURN_IF_ERROR(upload_.Send(stream_, &ints_, cache_->layer(0), &batch_));
  }
  const auto sink = [&](int64_t first, const TensorView& rows) -> absl::Status {
    ASSIGN_OR_RETURN(const Tensor copy, CopyToHost(stream_, rows));
    return CopyTensor(Stream::OnCpu(&stream_.pool()), copy, logits->Rows(first, rows.dim(0)));
  };
  moe::MoeStats stats;
  const moe::MoeContext moe = {
      .stream = &stream_, .comm = comm_.get(), .layout = &layout_, .schedule = &schedule_, .stats = &stats};
  const StageIn in = {
      .batch = &batch_, .moe = &moe, .logits = logits == nullptr ? std::nullopt : std::optional<LogitsSink>(sink)};
  RETURN_IF_ERROR(model_.Forward(in, model_.all_layers(), &*cache_, nullptr).status());
  RETURN_IF_ERROR(Synchronize(stream_));
  batch_.Clear();
  return absl::OkStatus();
}

absl::StatusOr<Tensor> DecodeSteps::Run() {
  RETURN_IF_ERROR(MakeCache());
  const auto count = static_cast<int64_t>(sequences_.size());
  const auto prompt = [&](int64_t s) {
    return static_cast<int64_t>(sequences_[static_cast<size_t>(s)].size()) - options_.decodes;
  };
  for (int64_t s = 0; s < count; ++s) {
    SY_CHECK_GT(prompt(s), 0);
    for (int64_t begin = 0; begin < prompt(s); begin += options_.chunk) {
      Add(static_cast<size_t>(s), begin, std::min(options_.chunk, prompt(s) - begin));
      RETURN_IF_ERROR(RunBatch(nullptr));
    }
  }
  Tensor all(DType::kF32, {count * options_.decodes, model_.config().vocab_size});
  const Tensor step(DType::kF32, {count, model_.config().vocab_size});
  for (int64_t i = 0; i < options_.decodes; ++i) {
    for (int64_t s = 0; s < count; ++s) Add(static_cast<size_t>(s), prompt(s) + i, 1);
    RETURN_IF_ERROR(RunBatch(&step.view()));
    for (int64_t s = 0; s < count; ++s) {
      std::copy_n(step.view().row<float>(s), step.dim(1), all.view().row<float>(s * options_.decodes + i));
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeDummyModel(const Stream& stream, const ModelConfig& config, DType dtype) {
  LoadOptions options;
  options.dtype = dtype;
  options.residents.resize(static_cast<size_t>(config.num_experts));
  std::iota(options.residents.begin(), options.residents.end(), 0);
  options.device = stream.device();
  absl::StatusOr<ModelWeights> weights = MakeDummyWeights(config, std::move(options));
  RETURN_IF_ERROR(weights.status());
  return Model::Create(stream, config, dtype, *std::move(weights), config.context);
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> tokens;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((state = SplitMix(state)) % static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

absl::StatusOr<Tensor> DecodeLogits(const Stream& stream, Model* model, const DecodeLogitsOptions& options,
                                    const std::vector<std::vector<int32_t>>& sequences) {
  return DecodeSteps(stream, model, options, sequences).Run();
}

std::vector<double> RowDistances(const TensorView& got, const TensorView& want) {
  std::vector<double> distances;
  for (int64_t row = 0; row < want.dim(0); ++row) {
    double difference = 0, magnitude = 0;
    for (int64_t i = 0; i < want.dim(1); ++i) {
      const double w = want.row<float>(row)[i], d = got.row<float>(row)[i] - w;
      difference += d * d;
      magnitude += w * w;
    }
    distances.push_back(std::sqrt(difference / magnitude));
  }
  return distances;
}

}  // namespace switchyard::model
