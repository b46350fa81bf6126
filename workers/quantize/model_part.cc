#include "workers/quantize/model_part.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/params.h"
#include "workers/quantize/layer_plan.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::quantize {
namespace {

constexpr int32_t kBlockSize = 1;  // of the cache: any run of rows has blocks of its own

model::ModelConfig WithoutLayers(model::ModelConfig config) {
  config.layers.clear();
  return config;
}

// -log2 of the probability of `token` by a row of logits.
template <class Elem>
double BitsOf(const Elem* logits, int64_t count, int32_t token) {
  const auto at = [&](int64_t i) { return static_cast<double>(static_cast<Acc<Elem>>(logits[i])); };
  double most = at(0), sum = 0;
  for (int64_t i = 1; i < count; ++i) most = std::max(most, at(i));
  for (int64_t i = 0; i < count; ++i) sum += std::exp(at(i) - most);
  return (std::log(sum) + most - at(token)) / std::log(2.0);
}

}  // namespace

ModelPart::ModelPart(const Stream& stream, const model::ModelConfig& config, const PartOptions& options)
    : stream_(stream), config_(config), options_(options), comm_(comm::MakeSoloCommunicator()) {
  layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(std::max<int64_t>(config_.num_experts, 1)), 1);
  const bool shared = config_.shared_intermediate > 0;
  infers_ = pipeline::BuildExpertParallel({.shared_expert = shared});
  trains_ = pipeline::BuildExpertParallel({.shared_expert = shared, .in_turn = true, .trains = true});
}

absl::Status ModelPart::Finish(model::ModelWeights weights) {
  ASSIGN_OR_RETURN(model_, model::Model::Create(stream_, config_, options_.dtype, std::move(weights), options_.length));
  if (config_.layers.empty()) return absl::OkStatus();
  blocks_.resize(static_cast<size_t>(max_rows()));
  std::iota(blocks_.begin(), blocks_.end(), 0);
  ASSIGN_OR_RETURN(model::KvCache cache,
                   model::KvCache::Create(config_, options_.dtype, kBlockSize,
                                          max_rows() * model::KvBytesPerToken(config_, options_.dtype)));
  cache_ = std::make_unique<model::KvCache>(std::move(cache));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelPart>> ModelPart::LoadEnds(const Stream& stream,
                                                               const checkpoint::Checkpoint& checkpoint,
                                                               const model::ModelConfig& config,
                                                               const PartOptions& options) {
  std::unique_ptr<ModelPart> part(new ModelPart(stream, WithoutLayers(config), options));
  ASSIGN_OR_RETURN(model::ModelWeights weights, model::AllocateWeights(part->config_, options.dtype, {}));
  ASSIGN_OR_RETURN(const std::vector<model::Param> params,
                   model::BuildParams(part->config_, *model::FindFamily(config.model_type), checkpoint, &weights));
  RETURN_IF_ERROR(model::LoadParams(
      checkpoint, params,
      {.dtype = options.dtype, .residents = {}, .num_threads = stream.pool().num_threads(), .progress = {}}));
  RETURN_IF_ERROR(part->Finish(std::move(weights)));
  return part;
}

absl::StatusOr<std::unique_ptr<ModelPart>> ModelPart::LoadLayer(const Stream& stream,
                                                                const checkpoint::Checkpoint& checkpoint,
                                                                const model::ModelConfig& config, int64_t layer_idx,
                                                                model::ModelWeights weights,
                                                                const PartOptions& options) {
  std::unique_ptr<ModelPart> part(new ModelPart(stream, OneLayer(config, layer_idx), options));
  ASSIGN_OR_RETURN(const std::vector<model::Param> params,
                   model::BuildLayerParams(config, *model::FindFamily(config.model_type), &checkpoint, layer_idx,
                                           AllExperts(config), &weights.layers.front()));
  RETURN_IF_ERROR(model::LoadParams(
      checkpoint, params,
      {.dtype = options.dtype, .residents = {}, .num_threads = stream.pool().num_threads(), .progress = {}}));
  RETURN_IF_ERROR(part->Finish(std::move(weights)));
  return part;
}

void ModelPart::FillBatch(const Windows& windows, int64_t first, int64_t count) {
  batch_.Clear();
  batch_.tokens.assign(windows.tokens.begin() + first, windows.tokens.begin() + first + count);
  auto next = std::lower_bound(windows.begins.begin(), windows.begins.end(), first);
  while (next != windows.begins.end() && *next < first + count) {
    const int64_t begin = *next++ - first;
    const int64_t end = next == windows.begins.end() ? count : std::min(count, *next - first);
    for (int64_t p = 0; p < end - begin; ++p)
      batch_.rope_rows.push_back(model_->rope().RowOf(static_cast<int32_t>(p), end - begin));
    batch_.sequences.push_back({.row_begin = begin, .num_query = static_cast<int32_t>(end - begin)});
    if (cache_ != nullptr)
      batch_.sequences.back().block_table = absl::MakeConstSpan(blocks_).subspan(begin, end - begin);
  }
}

absl::StatusOr<model::StageOut> ModelPart::Forward(const model::StageIn& in, bool trains, model::SavedForward* saved) {
  stats_.Clear();
  const moe::MoeContext context = {.stream = &stream_,
                                   .comm = comm_.get(),
                                   .layout = &layout_,
                                   .schedule = trains ? &trains_ : &infers_,
                                   .stats = &stats_};
  model::StageIn whole = in;
  whole.batch = &batch_;
  whole.moe = &context;
  return model_->Forward(whole, model_->all_layers(), cache_.get(), saved);
}

absl::Status ModelPart::Embed(const Windows& windows, const TensorView& rows) {
  for (int64_t first = 0; first < rows.dim(0); first += max_rows()) {
    const int64_t count = BatchRows(windows, first);
    FillBatch(windows, first, count);
    ASSIGN_OR_RETURN(const model::StageOut out, Forward({}, false, nullptr));
    RETURN_IF_ERROR(CopyTensor(stream_, out.hidden, rows.Rows(first, count)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ModelPart::Bits(const Windows& windows, const TensorView& rows) {
  double bits = 0;
  for (int64_t first = 0; first < rows.dim(0); first += max_rows()) {
    const int64_t count = BatchRows(windows, first);
    FillBatch(windows, first, count);
    for (int64_t row = 0; row + 1 < count; ++row) {
      if (windows.is_target[static_cast<size_t>(first + row + 1)] != 0)
        batch_.logit_rows.push_back(static_cast<int32_t>(row));
    }
    std::vector<double> of_rows(batch_.logit_rows.size());
    const auto add = [&](int64_t begin, const TensorView& logits) {
      stream_.pool().ParallelFor(logits.dim(0), 1, [&](int64_t from, int64_t end) {
        for (int64_t i = from; i < end; ++i) {
          const int64_t row = first + batch_.logit_rows[static_cast<size_t>(begin + i)];
          const int32_t token = windows.tokens[static_cast<size_t>(row + 1)];
          of_rows[static_cast<size_t>(begin + i)] = VisitDType(
              logits.dtype(), [&]<class Elem>() { return BitsOf(logits.row<Elem>(i), logits.dim(1), token); });
        }
      });
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(
        Forward({.hidden = rows.Rows(first, count), .logits = model::LogitsSink(add)}, false, nullptr).status());
    bits = std::accumulate(of_rows.begin(), of_rows.end(), bits);
  }
  return bits;
}

absl::Status ModelPart::Run(const Windows& windows, int64_t first, const TensorView& rows, model::SavedForward* saved) {
  FillBatch(windows, first, rows.dim(0));
  if (saved != nullptr) saved->Begin(rows.dim(0));
  ASSIGN_OR_RETURN(const model::StageOut out, Forward({.hidden = rows}, saved != nullptr, saved));
  return saved != nullptr ? absl::OkStatus() : CopyTensor(stream_, out.hidden, rows);
}

}  // namespace switchyard::quantize
