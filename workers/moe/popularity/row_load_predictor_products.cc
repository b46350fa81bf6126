// The products that a load predictor computes with a gate's rows on their device, and the rows that it fetches.
#include <algorithm>

#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/popularity/row_load_predictor.h"

namespace switchyard::moe {

absl::Status RowLoadPredictor::Fit(const MoeContext& context, const LayerContext& layer) {
  if (fit_ == nullptr) return absl::OkStatus();
  if (layer.index == 0) RETURN_IF_ERROR(TakeFitted(*context.stream));
  if (num_rows_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView x, x_on_host_.Take(context, layer.x, fit_->window()));
  ASSIGN_OR_RETURN(const TensorView logits, logits_on_host_.Take(context, layer.logits, fit_->window()));
  return fit_->OnGate(*context.stream, layer.index, x, logits, MonotonicNow());
}

absl::StatusOr<TensorView> RowLoadPredictor::WindowCopy::Take(const MoeContext& context, const TensorView& from,
                                                              const ProbeFit::Window& window) {
  const Stream& stream = *context.stream;
  if (stream.queue() == nullptr) return from;
  const int64_t row_bytes = from.dim(1) * DTypeBytes(from.dtype()), bytes = from.dim(0) * row_bytes;
  if (pinned_.bytes() < bytes) {
    const int64_t wanted = std::max(bytes, 2 * pinned_.bytes());
    pinned_ = PinnedBuffer();  // never both
    ASSIGN_OR_RETURN(pinned_, PinnedBuffer::Allocate(wanted, stream.device().kind));
  }
  const TensorView to(pinned_.data(), from.dtype(), from.shape());
  if (window.count == 0) return to;
  RETURN_IF_ERROR(CopyTensor(stream, from.Rows(window.first, window.count), to.Rows(window.first, window.count)));
  RETURN_IF_ERROR(Synchronize(stream, context.deadline));
  return to;
}

std::optional<RowLoadPredictor::Question> RowLoadPredictor::QuestionOf(popularity::Predictor predictor, int layer,
                                                                       int ahead, popularity::Phase phase) const {
  const int64_t count = ViewOf(phase).num_tokens;
  if (count == 0 || !this->phase(phase).Wants(predictor, layer, ahead)) return std::nullopt;
  Question question{.predictor = predictor, .layer = layer, .ahead = ahead, .phase = phase, .count = count};
  if (predictor == popularity::Predictor::kGateAhead) return question;
  const std::optional<Probe>& probe = probes_[IndexOf({.layer = layer - ahead, .ahead = ahead, .values = {}})];
  if (!probe.has_value()) return std::nullopt;
  question.map = &probe->map;
  return question;
}

// Enqueues all products and fetches their answers at once, to wait for a device once a gate.
absl::Status RowLoadPredictor::Predict(const MoeContext& context, const LayerContext& layer) {
  questions_.clear();
  int64_t answers = 0;
  for (int ahead = 1; ahead <= popularity::kMaxAhead && layer.index + ahead < options_.shape.num_layers; ++ahead) {
    for (int p = 0; p < popularity::kNumPredictors; ++p) {
      for (const popularity::Phase phase : popularity::kPhases) {
        const std::optional<Question> question =
            QuestionOf(static_cast<popularity::Predictor>(p), layer.index + ahead, ahead, phase);
        if (!question.has_value()) continue;
        questions_.push_back(*question);
        answers += question->count;
      }
    }
  }
  if (questions_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView predicted,
                   predicted_memory_.Take(answers, num_predicted_, DType::kI32, context.stream->device()));
  int64_t begin = 0;
  for (const Question& question : questions_) {
    RETURN_IF_ERROR(Ask(*context.stream, layer.x, question, predicted.Rows(begin, question.count)));
    begin += question.count;
  }
  ASSIGN_OR_RETURN(const TensorView on_host, answers_on_host_.Take(*context.stream, predicted, context.deadline));
  const int32_t* named = on_host.data<int32_t>();
  for (const Question& question : questions_) {
    const int32_t* const end = named + question.count * num_predicted_;
    predictions_.assign(named, end);
    mutable_phase(question.phase)->SetPredictions(question.predictor, question.layer, question.ahead, predictions_);
    named = end;
  }
  return absl::OkStatus();
}

absl::Status RowLoadPredictor::Ask(const Stream& stream, const TensorView& x, const Question& question,
                                   const TensorView& predicted) {
  const TensorView of_phase =
      x.Rows(question.phase == popularity::Phase::kPrefill ? num_decode_rows_ : 0, question.count);
  if (question.map == nullptr) {
    const ops::Weight& router = *options_.routers[static_cast<size_t>(question.layer)];
    return forecast_.Predict(stream, of_phase, router, {}, predicted);
  }
  return forecast_.Predict(stream, of_phase, question.map->weight, question.map->bias, predicted);
}

absl::Status RowLoadPredictor::Reserve(const Stream& stream, int64_t rows) {
  const Device device = stream.device();
  RETURN_IF_ERROR(forecast_.Reserve({.rows = rows,
                                     .experts = options_.shape.num_experts,
                                     .predicted = num_predicted_,
                                     .acc = AccDType(options_.dtype)},
                                    device));
  // All predictors may be asked of every row, at both distances.
  return predicted_memory_
      .Take(rows * popularity::kNumPredictors * popularity::kMaxAhead, num_predicted_, DType::kI32, device)
      .status();
}

int64_t RowLoadPredictor::MapBytesToCome(DeviceKind device) const {
  if (fit_ == nullptr) return 0;
  const int64_t experts = options_.shape.num_experts;
  const int64_t one = ops::PackedBytes({.n = experts, .k = options_.hidden, .dtype = options_.dtype}, device) +
                      experts * DTypeBytes(options_.dtype);
  int64_t to_come = 0;
  for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
    for (int ahead = 1; ahead <= popularity::kMaxAhead && layer + ahead < options_.shape.num_layers; ++ahead) {
      if (!probes_[IndexOf({.layer = layer, .ahead = ahead, .values = {}})].has_value()) to_come += one;
    }
  }
  return to_come + one;  // a map is there twice while it is replaced
}

}  // namespace switchyard::moe
