#include "server/engine/live_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace switchyard::server {
namespace {

bool IsClean(batching::FinishReason reason) {
  return reason == batching::FinishReason::kStop || reason == batching::FinishReason::kLength ||
         reason == batching::FinishReason::kAbort;
}

// Observes only the phases that a sequence has reached, since zeros would distort the histograms.
void ObserveTimings(const batching::SequenceTimings& timings, int32_t num_tokens, ServerMetrics* metrics) {
  metrics->request_queue_time->Observe(absl::ToDoubleSeconds(timings.Queue()));
  if (timings.first_token == absl::InfinitePast()) return;
  metrics->request_prefill_time->Observe(absl::ToDoubleSeconds(timings.Prefill()));
  metrics->request_decode_time->Observe(absl::ToDoubleSeconds(timings.Decode()));
  metrics->request_inference_time->Observe(absl::ToDoubleSeconds(timings.Prefill() + timings.Decode()));
  if (num_tokens < 2) return;
  metrics->request_time_per_output_token->Observe(absl::ToDoubleSeconds(timings.Decode()) / (num_tokens - 1));
}

}  // namespace

LiveRequest::LiveRequest(std::unique_ptr<InferenceRequest> request, std::shared_ptr<TokenStream> stream,
                         const tokenizer::Tokenizer* tokenizer, ServerMetrics* metrics)
    : metrics_(metrics),
      request_(std::move(request)),
      stream_(std::move(stream)),
      stops_(request_->stop),
      chunks_(request_->num_choices),
      ended_(request_->num_choices, false),
      unfinished_(request_->num_choices) {
  metrics_->request_prompt_tokens->Observe(static_cast<double>(request_->prompt.size()));
  metrics_->prompt_tokens->Increment(static_cast<double>(request_->prompt.size()));
  if (request_->adapter > 0) metrics_->adapter_requests(request_->adapter).Increment();
  metrics_->request_params_n->Observe(request_->num_choices);
  metrics_->request_params_max_tokens->Observe(request_->max_tokens);
  for (int choice = 0; choice < request_->num_choices; ++choice) {
    choices_.emplace_back(request_.get(), &stops_, request_->has_text ? tokenizer : nullptr);
    chunks_[choice].choice = choice;
  }
}

bool LiveRequest::TakeToken(int choice, batching::TokenEvent token, absl::Time now) {
  ChoiceOutput& output = choices_[choice];
  if (output.stop_string()) return false;  // tokens in flight after the stop
  OutputChunk& chunk = chunks_[choice];
  if (chunk.tokens.empty()) chunk.index = token.index;
  chunk.tokens.push_back(token.token);
  if (token.logprobs) chunk.logprobs.push_back(std::move(*token.logprobs));
  chunk.text += output.Take(token.token, token.index);
  if (!saw_first_token_) {
    saw_first_token_ = true;
    metrics_->time_to_first_token->Observe(absl::ToDoubleSeconds(now - request_->arrival));
  }
  if (output.last_token_time != absl::InfinitePast()) {
    metrics_->inter_token_latency->Observe(absl::ToDoubleSeconds(now - output.last_token_time));
  }
  output.last_token_time = now;
  return output.stop_string().has_value();
}

void LiveRequest::TakePromptLogprobs(int choice, batching::PromptLogprobsEvent prompt) {
  std::move(prompt.positions.begin(), prompt.positions.end(), std::back_inserter(chunks_[choice].prompt_logprobs));
}

void LiveRequest::TakePaths(int choice, batching::ExpertPathsEvent paths) {
  if (choices_[choice].stop_string()) return;  // paths of tokens after the stop
  JoinPaths(&chunks_[choice].expert_paths, {.first_position = paths.first_position,
                                            .num_moe_layers = request_->num_moe_layers,
                                            .top_k = request_->top_k,
                                            .experts = std::move(paths.experts)});
}

batching::FinishReason LiveRequest::EndOf(int choice, batching::FinishReason reason) const {
  const bool stopped = reason == batching::FinishReason::kLength && choices_[choice].stop_string();
  return stopped ? batching::FinishReason::kStop : reason;
}

bool LiveRequest::TakeFinished(int choice, const batching::FinishedEvent& finished) {
  ended_[choice] = true;
  --unfinished_;
  const batching::FinishReason reason = EndOf(choice, finished.reason);
  // As in vLLM, a client that goes away counts as an abort; a sequence that the server ends for a fault does not count.
  if (IsClean(reason) && (error_.ok() || absl::IsCancelled(error_))) metrics_->request_success(reason).Increment();
  if (reason == batching::FinishReason::kError) metrics_->corrupted_requests->Increment();
  metrics_->request_generation_tokens->Observe(finished.usage.completion_tokens);
  most_tokens_ = std::max(most_tokens_, finished.usage.completion_tokens);
  if (unfinished_ == 0) metrics_->request_max_num_generation_tokens->Observe(most_tokens_);
  ObserveTimings(finished.timings, finished.usage.completion_tokens, metrics_);
  if (!IsClean(reason)) return false;
  OutputChunk& chunk = chunks_[choice];
  chunk.text += choices_[choice].Flush();
  chunk.finished = true;
  chunk.reason = reason;
  chunk.stop_token = reason == batching::FinishReason::kStop ? choices_[choice].stop_token() : -1;
  chunk.stop_string = choices_[choice].stop_string().value_or("");
  chunk.usage = finished.usage;
  chunk.timings = finished.timings;
  chunk.timings.queued = request_->arrival;  // for the client, the wait for the front pool was one in a queue, too
  return true;
}

void LiveRequest::Flush(absl::Time now) {
  for (OutputChunk& chunk : chunks_) {
    const bool has_lists = !chunk.prompt_logprobs.empty() || !chunk.expert_paths.experts.empty();
    if (chunk.tokens.empty() && !has_lists && !chunk.finished) continue;
    const int choice = chunk.choice;
    stream_->Push(std::exchange(chunk, OutputChunk{}), now);
    chunk.choice = choice;
  }
}

void LiveRequest::Close(absl::Time now) {
  if (error_.ok()) {
    metrics_->e2e_request_latency->Observe(absl::ToDoubleSeconds(now - request_->arrival));
  } else {
    metrics_->request_error(error_.code()).Increment();
  }
  stream_->Close(error_);
}

}  // namespace switchyard::server
