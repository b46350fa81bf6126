// The products that a load predictor computes with a gate's rows on their device, and the rows that it fetches.
#include <algorithm>

#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/popularity/row_load_predictor.h"

namespace switchyard::moe {

absl::Status RowLoadPredictor::Fit(const MoeContext& context, const LayerContext& layer) {
  if (fit_ == nullptr) return absl::OkStatus();
  if (layer.index == 0) RETURN_IF_ERROR(TakeFitted(*context.stream));
  if (num_rows_ == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TensorView x, x_on_host_.Take(context, layer.x, fit_->window()));
  ASSIGN_OR_RETURN(const TensorView logits, logits_on_host_.Take(context, layer.logits, fit_->window()));
  return fit_->OnGate(*context.stream, layer.index, x, logits, absl::Now());
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
  popularity::ProbeMap wanted{.layer = layer - ahead, .ahead = ahead, .in_context = true, .values = {}};
  const std::optional<Probe>& in_context = probes_[IndexOf(wanted)];
  question.in_context = phase == popularity::Phase::kPrefill && !prompt_begins_.empty() && in_context.has_value();
  wanted.in_context = question.in_context;
  const std::optional<Probe>& probe = probes_[IndexOf(wanted)];
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
  if (!question.in_context) {
    return forecast_.Predict(stream, of_phase, question.map->weight, question.map->bias, predicted);
  }
  RETURN_IF_ERROR(SendBegins(stream));
  return forecast_.PredictInContext(stream, of_phase, *question.map, begins_on_device_.Part(0, question.count),
                                    predicted);
}

// Sends them once a pass.
absl::Status RowLoadPredictor::SendBegins(const Stream& stream) {
  if (begins_sent_) return absl::OkStatus();
  const auto count = static_cast<int64_t>(prompt_begins_.size());
  RETURN_IF_ERROR(ReserveBegins(count, stream.device()));
  RETURN_IF_ERROR(begins_upload_.Begin(stream));
  const IntUpload::Array to = begins_upload_.Take(count);
  for (size_t t = 0; t < prompt_begins_.size(); ++t) to.host[t] = prompt_begins_[t] != 0 ? 1 : 0;
  RETURN_IF_ERROR(begins_upload_.Send(stream));
  begins_on_device_ = to.device;
  begins_sent_ = true;
  return absl::OkStatus();
}

absl::Status RowLoadPredictor::ReserveBegins(int64_t rows, Device device) {
  if (rows <= begins_room_) return absl::OkStatus();
  ASSIGN_OR_RETURN(begins_upload_, IntUpload::Create(device, {rows}));
  begins_room_ = rows;
  return absl::OkStatus();
}

absl::Status RowLoadPredictor::Reserve(const Stream& stream, int64_t rows) {
  const Device device = stream.device();
  const bool in_context = MayHaveMaps(/*in_context=*/true);
  RETURN_IF_ERROR(forecast_.Reserve({.rows = rows,
                                     .experts = options_.shape.num_experts,
                                     .predicted = num_predicted_,
                                     .acc = AccDType(options_.dtype),
                                     .in_context = in_context,
                                     .units = MostUnits()},
                                    device));
  // All predictors may be asked of every row, at both distances.
  RETURN_IF_ERROR(
      predicted_memory_
          .Take(rows * popularity::kNumPredictors * popularity::kMaxAhead, num_predicted_, DType::kI32, device)
          .status());
  return in_context ? ReserveBegins(rows, device) : absl::OkStatus();
}

int64_t RowLoadPredictor::MostUnits() const {
  int64_t units = fit_ != nullptr && fit_->options().kept_rows > 0 ? HiddenFitOptions().num_units : 0;
  for (const std::optional<Probe>& probe : probes_) {
    if (probe.has_value()) units = std::max<int64_t>(units, probe->source.num_units);
  }
  return units;
}

bool RowLoadPredictor::MayHaveMaps(bool in_context) const {
  if (fit_ != nullptr && (!in_context || fit_->options().in_context)) return true;
  return std::any_of(probes_.begin(), probes_.end(), [&](const std::optional<Probe>& probe) {
    return probe.has_value() && probe->source.in_context == in_context;
  });
}

int64_t RowLoadPredictor::MapBytesToCome(DeviceKind device) const {
  if (fit_ == nullptr) return 0;
  const int64_t experts = options_.shape.num_experts, units = MostUnits();
  const auto bytes_of = [&](bool in_context) {
    const int64_t outputs = in_context ? 2 * (experts + units) : experts;
    const int64_t out = in_context && units > 0
                            ? ops::PackedBytes({.n = experts, .k = units, .dtype = AccDType(options_.dtype)}, device)
                            : 0;
    return ops::PackedBytes({.n = outputs, .k = options_.hidden, .dtype = options_.dtype}, device) +
           outputs * DTypeBytes(options_.dtype) + out;
  };
  int64_t to_come = 0, largest = 0;
  for (const bool in_context : {false, true}) {
    if (in_context && !fit_->options().in_context) continue;
    const int64_t one = bytes_of(in_context);
    largest = std::max(largest, one);
    for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
      for (int ahead = 1; ahead <= popularity::kMaxAhead && layer + ahead < options_.shape.num_layers; ++ahead) {
        const popularity::ProbeMap map{.layer = layer, .ahead = ahead, .in_context = in_context, .values = {}};
        if (!probes_[IndexOf(map)].has_value()) to_come += one;
      }
    }
  }
  return to_come + largest;  // a map is there twice while it is replaced
}

}  // namespace switchyard::moe
