#include "workers/model/weights/dummy_weights.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/packed_uploads.h"
#include "workers/tensor/device_writer.h"

namespace switchyard::model {
namespace {

constexpr double kDeviation = 0.02;
// Numbers are taken from windows of a pool of so many: drawing 30 billion takes minutes.
constexpr int64_t kPoolElements = 8 << 20;

class Filler {
 public:
  Filler(DType dtype, DeviceWriter* writer, int64_t widest_row, int64_t total_bytes, LoadOptions* options)
      : dtype_(dtype),
        writer_(writer),
        uploads_(writer),
        total_bytes_(total_bytes),
        options_(options),
        pool_(dtype, {kPoolElements + widest_row}) {
    std::mt19937_64 generator(1);
    const double most = kDeviation * 1.7320508075688772;  // sqrt(3)
    std::uniform_real_distribution<double> uniform(-most, most);
    VisitDType(dtype, [&]<class Elem>() {
      Elem* const to = pool_.data<Elem>();
      for (int64_t i = 0; i < pool_.dim(0); ++i) {
        to[i] = Elem(static_cast<Acc<Elem>>(static_cast<float>(Bf16(static_cast<float>(uniform(generator))))));
      }
    });
  }

  // key: names the matrix in the model.
  absl::Status Fill(ops::Weight* weight, uint64_t key) {
    if (weight->empty()) return absl::OkStatus();
    const int64_t k = weight->k(), step = StepOf(k);
    for (int64_t row = 0; row < weight->n(); row += step) {
      const int64_t count = std::min(step, weight->n() - row);
      RETURN_IF_ERROR(uploads_.Pack(weight, count, [&](ops::Weight* host) {
        return host->PackRows(row, Window(key, row, count, k), host == weight ? writer_ : nullptr);
      }));
      RETURN_IF_ERROR(Report(count * k));
    }
    if (!weight->desc().bias) return absl::OkStatus();
    const Tensor zeros = Tensor::Zeros(dtype_, {weight->n(), 1});
    return weight->PackBias(0, zeros, writer_);
  }

  // The rows that a weight of that key gets.
  absl::Status FillLike(Tensor* table, const ops::Weight& weight, uint64_t key) {
    if (table->bytes() == 0) return absl::OkStatus();
    const int64_t k = weight.k(), step = StepOf(k);
    for (int64_t row = 0; row < weight.n(); ++row) {
      const int64_t first = row - row % step;
      const TensorView window = Window(key, first, std::min(step, weight.n() - first), k);
      RETURN_IF_ERROR(Write(*table, row, window.Rows(row - first, 1)));
      RETURN_IF_ERROR(Report(k));
    }
    return absl::OkStatus();
  }

  absl::Status Fill(Tensor* table, uint64_t key) {
    if (table->bytes() == 0) return absl::OkStatus();
    for (int64_t row = 0; row < table->dim(0); ++row) {
      RETURN_IF_ERROR(Write(*table, row, Window(key, row, 1, table->dim(1))));
      RETURN_IF_ERROR(Report(table->dim(1)));
    }
    return absl::OkStatus();
  }

  absl::Status FillVector(Tensor* vector, double value) {
    if (vector->bytes() == 0) return absl::OkStatus();
    const DType dtype = vector->dtype();
    const Tensor row(dtype, {1, vector->dim(0)});
    VisitDType(dtype,
               [&]<class Elem>() { std::fill_n(row.data<Elem>(), row.dim(1), Elem(static_cast<Acc<Elem>>(value))); });
    return Write(vector->view().Reshape({1, vector->dim(0)}), 0, row);
  }

  // Vectors and padding were not counted.
  absl::Status ReportAll() {
    done_bytes_ = total_bytes_;
    next_report_ = absl::InfinitePast();
    return Report(0);
  }

 private:
  // Rows of a weight that come from one window.
  static int64_t StepOf(int64_t columns) { return std::max<int64_t>(1, (kPoolElements / 2) / columns); }
  TensorView Window(uint64_t key, int64_t row, int64_t count, int64_t columns) const {
    const int64_t room = pool_.dim(0) - count * columns;
    const int64_t offset = static_cast<int64_t>(SplitMix(key * 1000003 + static_cast<uint64_t>(row)) % (room + 1));
    char* const base = static_cast<char*>(pool_.view().raw());
    return TensorView(base + offset * DTypeBytes(dtype_), dtype_, {count, columns});
  }

  absl::Status Write(const TensorView& table, int64_t row, const TensorView& from) {
    const int64_t bytes = from.NumElements() * DTypeBytes(from.dtype());
    const char* const source = static_cast<const char*>(from.raw());
    void* const to = table.Rows(row, 1).raw();
    if (writer_ == nullptr) {
      std::copy_n(source, bytes, static_cast<char*>(to));
      return absl::OkStatus();
    }
    return writer_->Write(to, 1, bytes, [&](int64_t, int64_t, char* at) { std::copy_n(source, bytes, at); });
  }

  absl::Status Report(int64_t elements) {
    done_bytes_ += elements * DTypeBytes(dtype_);
    const absl::Time now = MonotonicNow();
    if (now < next_report_) return absl::OkStatus();
    next_report_ = now + absl::Milliseconds(250);
    if (now >= next_log_) {
      if (next_log_ != absl::InfinitePast()) {
        LogInfo("random weights: ", done_bytes_ / 1000000, " of ", total_bytes_ / 1000000, " MB");
      }
      next_log_ = now + absl::Seconds(2);
    }
    if (options_->progress && !options_->progress(done_bytes_, total_bytes_)) {
      return absl::CancelledError("making random weights was stopped");
    }
    return absl::OkStatus();
  }

  const DType dtype_;
  DeviceWriter* const writer_;
  PackedUploads uploads_;
  const int64_t total_bytes_;
  LoadOptions* const options_;
  Tensor pool_;
  int64_t done_bytes_ = 0;
  absl::Time next_report_ = absl::InfinitePast(), next_log_ = absl::InfinitePast();
};

enum Part : uint64_t { kQkv, kO, kRouter, kDense, kShared, kSharedGate, kExperts };

uint64_t KeyOf(size_t layer, uint64_t part) { return 16 + layer * 100000 + part * 2; }

absl::Status FillFfn(Filler* filler, FfnWeights* ffn, uint64_t key) {
  RETURN_IF_ERROR(filler->Fill(&ffn->gate_up, key));
  for (Tensor* bias : {&ffn->up_bias, &ffn->down_bias}) RETURN_IF_ERROR(filler->FillVector(bias, 0));
  return filler->Fill(&ffn->down, key + 1);
}

absl::Status FillExperts(Filler* filler, MoeWeights* moe, size_t layer, const std::vector<int32_t>& residents) {
  for (size_t slot = 0; slot < moe->experts.size(); ++slot) {
    const uint64_t key = KeyOf(layer, kExperts + static_cast<uint64_t>(residents[slot]));
    RETURN_IF_ERROR(FillFfn(filler, &moe->experts[slot], key));
  }
  return absl::OkStatus();
}

absl::Status FillLayer(Filler* filler, LayerWeights* layer, size_t i, const std::vector<int32_t>& residents) {
  AttentionWeights& attention = layer->attention;
  RETURN_IF_ERROR(filler->Fill(&attention.qkv, KeyOf(i, kQkv)));
  RETURN_IF_ERROR(filler->Fill(&attention.o, KeyOf(i, kO)));
  for (Tensor* gamma : {&attention.norm, &attention.q_norm, &attention.k_norm, &layer->ffn_norm}) {
    RETURN_IF_ERROR(filler->FillVector(gamma, 1));
  }
  for (Tensor* bias :
       {&attention.qkv_bias, &attention.o_bias, &attention.sinks, &attention.norm_bias, &layer->ffn_norm_bias})
    RETURN_IF_ERROR(filler->FillVector(bias, 0));
  if (layer->dense.has_value()) RETURN_IF_ERROR(FillFfn(filler, &*layer->dense, KeyOf(i, kDense)));
  if (!layer->moe.has_value()) return absl::OkStatus();
  MoeWeights& moe = *layer->moe;
  RETURN_IF_ERROR(filler->Fill(&moe.router, KeyOf(i, kRouter)));
  RETURN_IF_ERROR(filler->FillVector(&moe.router_bias, 0));
  RETURN_IF_ERROR(filler->Fill(&moe.shared_gate, KeyOf(i, kSharedGate)));
  if (moe.shared.has_value()) RETURN_IF_ERROR(FillFfn(filler, &*moe.shared, KeyOf(i, kShared)));
  return FillExperts(filler, &moe, i, residents);
}

int64_t WidestRow(const ModelConfig& config) {
  return std::max({config.hidden, config.q_width(), config.expert_intermediate, config.shared_intermediate,
                   config.dense_intermediate});
}

}  // namespace

absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, LoadOptions options) {
  ASSIGN_OR_RETURN(ModelWeights weights,
                   AllocateWeights(config, {options.dtype, options.format}, options.residents, options.device,
                                   {.none = !options.experts}, /*in_arena=*/true));
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceWriter> writer, DeviceWriter::Create(options.device));
  Filler filler(options.dtype, writer.get(), WidestRow(config), weights.bytes(), &options);
  if (config.tie_embeddings) {
    RETURN_IF_ERROR(filler.FillLike(&weights.embedding, weights.lm_head, 1));
  } else {
    RETURN_IF_ERROR(filler.Fill(&weights.embedding, 0));
  }
  RETURN_IF_ERROR(filler.Fill(&weights.lm_head, 1));
  RETURN_IF_ERROR(filler.Fill(&weights.positions, 2));
  RETURN_IF_ERROR(filler.FillVector(&weights.final_norm, 1));
  RETURN_IF_ERROR(filler.FillVector(&weights.final_norm_bias, 0));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    RETURN_IF_ERROR(FillLayer(&filler, &weights.layers[i], i, weights.residents));
  }
  if (writer != nullptr) RETURN_IF_ERROR(writer->Finish());
  RETURN_IF_ERROR(filler.ReportAll());
  return weights;
}

absl::Status MakeDummyExperts(const ModelConfig& config, LoadOptions options,
                              std::function<char*(int layer, int32_t expert)> place) {
  ASSIGN_OR_RETURN(ModelWeights weights,
                   AllocateWeights(config, {options.dtype, options.format}, options.residents, Device::Cpu(),
                                   {.place = std::move(place), .packing = options.device.kind}));
  int64_t bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.moe.has_value()) continue;
    for (const FfnWeights& expert : layer.moe->experts) bytes += expert.gate_up.bytes() + expert.down.bytes();
  }
  Filler filler(options.dtype, nullptr, WidestRow(config), bytes, &options);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    std::optional<MoeWeights>& moe = weights.layers[i].moe;
    if (moe.has_value()) RETURN_IF_ERROR(FillExperts(&filler, &*moe, i, weights.residents));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
