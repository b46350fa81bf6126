#include "workers/moe/experts/cold_experts.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/layer/moe_context.h"
#include "workers/ops/exchange/permute.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {
namespace {

constexpr double kNewest = 1.0 / 16;  // share of the last layer in the measured slowness

}  // namespace

ColdExperts::ColdExperts(ColdExpertsOptions options, ExpertOffload* offload)
    : options_(std::move(options)),
      offload_(offload),
      choice_(offload->num_layers() * static_cast<int>(offload->experts().size())) {}

absl::StatusOr<std::unique_ptr<ColdExperts>> ColdExperts::Create(ColdExpertsOptions options, ExpertOffload* offload) {
  SY_CHECK(!options.device.is_cpu() && options.source != nullptr && options.copy_seconds != nullptr &&
           options.host_seconds != nullptr);
  const ops::WeightDesc& down = options.expert.of(0).down;
  const DType dtype = down.dtype;
  const int64_t hidden = down.n, ffn = down.k;
  const Device device = options.device;
  auto cold = std::unique_ptr<ColdExperts>(new ColdExperts(std::move(options), offload));
  ASSIGN_OR_RETURN(cold->gathered_, Tensor::Allocate(dtype, {kMostRows, hidden}, device));
  ASSIGN_OR_RETURN(cold->hidden_, Tensor::Allocate(dtype, {kMostRows, ffn}, Device::Cpu()));
  const int64_t bytes = kMostRows * hidden * DTypeBytes(dtype);
  ASSIGN_OR_RETURN(cold->x_, PinnedBuffer::Allocate(bytes, device.kind));
  ASSIGN_OR_RETURN(cold->y_, PinnedBuffer::Allocate(bytes, device.kind));
  return cold;
}

void ColdExperts::Choose(int layer, const ExpertRows& rows) {
  cold_.clear();
  elsewhere_.assign(rows.experts.size(), 0);
  rows_ = 0;
  const double price = options_.copy_seconds();
  for (size_t slot = 0; slot < rows.experts.size(); ++slot) {
    const int32_t count = rows.offsets[slot + 1] - rows.offsets[slot];
    if (count == 0 || rows_ + count > kMostRows) continue;
    const int32_t expert = rows.experts[slot];
    const offload::ExpertKey key = offload_->KeyOf(layer, expert);
    // The budget refuses experts that are not its own.
    if (key == offload::kNoExpert || offload_->store().StateOf({.layer = layer, .expert = expert}) != SlotState::kFree)
      continue;
    if (!choice_.StaysCold(key, HostSeconds(count), price)) continue;
    cold_.push_back({.expert = expert, .begin = rows.offsets[slot], .count = count});
    elsewhere_[slot] = 1;
    rows_ += count;
  }
}

absl::Status ColdExperts::RunLayer(const MoeContext& context, const LayerContext& layer, const ExpertRows& rows,
                                   Compute compute) {
  SY_CHECK(context.stream != nullptr && context.stream->device() == options_.device);
  const Stream& stream = *context.stream;
  if (layer.index == 0 && layer.chunk == 0) choice_.BeginPass();
  Choose(layer.index, rows);
  if (cold_.empty()) return offload_->RunLayer(context, layer, rows, compute);
  SY_CHECK(rows.x.rank() == 2 && rows.y.rank() == 2);
  RETURN_IF_ERROR(StartFetch(stream, rows));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceEvent> fetched, stream.queue()->Record());
  ExpertRows others = rows;
  others.elsewhere = elsewhere_;
  RETURN_IF_ERROR(offload_->RunLayer(context, layer, others, compute));
  RETURN_IF_ERROR(stream.queue()->WaitOnHost(*fetched, context.deadline));
  RETURN_IF_ERROR(ComputeOnHost(stream, layer.index));
  return SendBack(stream, rows);
}

absl::Status ColdExperts::StartFetch(const Stream& stream, const ExpertRows& rows) {
  int64_t to = 0;
  for (const Cold& cold : cold_) {
    const TensorView gathered = gathered_.view().Rows(to, cold.count);
    if (rows.x_rows.empty()) {
      RETURN_IF_ERROR(CopyTensor(stream, rows.x.Rows(cold.begin, cold.count), gathered));
    } else {
      RETURN_IF_ERROR(ops::GatherRows(stream, rows.x, rows.x_rows.Part(cold.begin, cold.count), gathered));
    }
    to += cold.count;
  }
  const TensorView all = gathered_.view().Rows(0, rows_);
  return CopyTensor(stream, all, HostRows(x_.data(), rows_, all.dim(1)));
}

absl::Status ColdExperts::ComputeOnHost(const Stream& stream, int layer) {
  const absl::Time start = MonotonicNow();
  weights_.clear();
  weights_.reserve(2 * cold_.size());
  gate_up_.clear();
  down_.clear();
  offsets_.assign(1, 0);
  const PackedExpert& expert = options_.expert.of(layer);
  double expected = 0;
  for (const Cold& cold : cold_) {
    char* const at = const_cast<char*>(options_.source(layer, cold.expert));
    weights_.push_back(ops::Weight::Over(expert.gate_up, at, /*packed=*/true));
    gate_up_.push_back(&weights_.back());
    weights_.push_back(ops::Weight::Over(expert.down, at + expert.down_offset, /*packed=*/true));
    down_.push_back(&weights_.back());
    offsets_.push_back(offsets_.back() + cold.count);
    expected += options_.host_seconds(cold.count);
  }
  // In the stream's order, the outputs of the layer before have left y_ by now.
  const int64_t hidden = expert.down.n;
  RETURN_IF_ERROR(ops::ExpertFfn(
      Stream::OnCpu(&stream.pool()), {.gate_up = gate_up_, .down = down_, .offsets = offsets_, .clamp = options_.clamp},
      HostRows(x_.data(), rows_, hidden), hidden_.view().Rows(0, rows_), HostRows(y_.data(), rows_, hidden)));
  const double seconds = std::max(0.0, absl::ToDoubleSeconds(MonotonicNow() - start));
  if (expected > 0) slowness_ += kNewest * (seconds / expected - slowness_);
  counters_.experts += static_cast<int64_t>(cold_.size());
  counters_.rows += rows_;
  counters_.seconds += seconds;
  return absl::OkStatus();
}

absl::Status ColdExperts::SendBack(const Stream& stream, const ExpertRows& rows) {
  int64_t from = 0;
  for (const Cold& cold : cold_) {
    const int64_t hidden = rows.y.dim(1), row_bytes = hidden * DTypeBytes(hidden_.dtype());
    RETURN_IF_ERROR(CopyTensor(stream, HostRows(y_.data() + from * row_bytes, cold.count, hidden),
                               rows.y.Rows(cold.begin, cold.count)));
    from += cold.count;
  }
  return absl::OkStatus();
}

}  // namespace switchyard::moe
