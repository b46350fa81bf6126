#include "scheduler/simulator/trace_batches.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::simulator {

TraceBatches::TraceBatches(const popularity::RoutingTrace* trace, popularity::Phase phase, int64_t batch_tokens)
    : trace_(trace), phase_(phase), batch_tokens_(batch_tokens), begins_({0}) {
  SY_CHECK_GE(batch_tokens, 1);
  for (const popularity::TraceSequence& sequence : trace->sequences)
    begins_.push_back(begins_.back() + sequence.num_tokens());
  num_batches_ = begins_.back() / batch_tokens;
}

TraceBatches::Token TraceBatches::At(int64_t index) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), index);
  const auto s = static_cast<size_t>(after - begins_.begin() - 1);
  return {.sequence = &trace_->sequences[s], .position = index - begins_[s]};
}

void TraceBatches::Load(int64_t batch) {
  SY_CHECK(batch >= 0 && batch < num_batches_);
  const int64_t per_token = int64_t{trace_->shape.num_layers} * trace_->shape.top_k;
  tokens_.clear();
  token_ids_.clear();
  experts_.clear();
  for (int64_t t = 0; t < batch_tokens_; ++t) {
    const Token token =
        At(phase_ == popularity::Phase::kPrefill ? batch * batch_tokens_ + t : t * num_batches_ + batch);
    tokens_.push_back(token);
    token_ids_.push_back(token.sequence->token_ids[static_cast<size_t>(token.position)]);
    const auto experts = token.sequence->experts.begin() + token.position * per_token;
    experts_.insert(experts_.end(), experts, experts + per_token);
  }
}

popularity::RoutingView TraceBatches::View() const {
  const int64_t layer_stride = trace_->shape.top_k;
  return {.shape = trace_->shape,
          .num_tokens = static_cast<int64_t>(tokens_.size()),
          .token_ids = token_ids_.data(),
          .experts = experts_.data(),
          .token_stride = trace_->shape.num_layers * layer_stride,
          .layer_stride = layer_stride};
}

std::vector<int16_t> TraceBatches::Predictions(size_t channel, int layer) const {
  const int64_t width = trace_->channels[channel].num_predicted;
  std::vector<int16_t> predictions;
  for (const Token& token : tokens_) {
    const auto begin =
        token.sequence->predictions[channel].begin() + (token.position * trace_->shape.num_layers + layer) * width;
    predictions.insert(predictions.end(), begin, begin + width);
  }
  return predictions;
}

}  // namespace switchyard::simulator
