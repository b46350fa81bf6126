#include "server/engine/token_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "server/fleet/server_stall.h"

namespace switchyard::server {
namespace {

template <class Value>
void Append(std::vector<Value>* to, std::vector<Value> from) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Returns how many of the first positions fit `*budget` entries, and subtracts their entries from it.
size_t Fitting(const std::vector<batching::PositionLogprobs>& positions, size_t* budget) {
  size_t count = 0;
  while (count < positions.size() && *budget > 0) {
    *budget -= std::min(*budget, 1 + positions[count].top.size());
    ++count;
  }
  return count;
}

// The same for rows of expert paths.
size_t Fitting(const ExpertPaths& paths, size_t* budget) {
  if (paths.experts.empty() || *budget == 0) return 0;
  const size_t entries = (paths.ids_per_row() + kExpertsPerEntry - 1) / kExpertsPerEntry;
  const size_t rows = paths.experts.size() / paths.ids_per_row();
  const size_t fitting = std::min(rows, (*budget + entries - 1) / entries);
  *budget -= std::min(*budget, fitting * entries);
  return fitting;
}

template <class Value>
std::vector<Value> TakeFirst(std::vector<Value>* from, size_t count) {
  const auto end = from->begin() + static_cast<ptrdiff_t>(count);
  std::vector<Value> out(std::make_move_iterator(from->begin()), std::make_move_iterator(end));
  from->erase(from->begin(), end);
  return out;
}

ExpertPaths TakeRows(ExpertPaths* from, size_t rows) {
  ExpertPaths out = {.first_position = from->first_position,
                     .num_moe_layers = from->num_moe_layers,
                     .top_k = from->top_k,
                     .experts = TakeFirst(&from->experts, rows * from->ids_per_row())};
  from->first_position += static_cast<int32_t>(rows);
  return out;
}

}  // namespace

std::optional<OutputChunk> CutChunk(OutputChunk* chunk, size_t budget) {
  const size_t prompt = Fitting(chunk->prompt_logprobs, &budget);
  const size_t rows = Fitting(chunk->expert_paths, &budget);
  const size_t tokens = Fitting(chunk->logprobs, &budget);
  if (prompt == chunk->prompt_logprobs.size() && tokens == chunk->logprobs.size() &&
      rows * chunk->expert_paths.ids_per_row() == chunk->expert_paths.experts.size()) {
    return std::nullopt;
  }
  OutputChunk part;
  part.choice = chunk->choice;
  part.index = chunk->index;
  part.prompt_logprobs = TakeFirst(&chunk->prompt_logprobs, prompt);
  part.expert_paths = TakeRows(&chunk->expert_paths, rows);
  part.logprobs = TakeFirst(&chunk->logprobs, tokens);
  part.tokens = TakeFirst(&chunk->tokens, std::min(tokens, chunk->tokens.size()));
  chunk->index += static_cast<int32_t>(part.tokens.size());
  return part;
}

absl::Status SlowReader(absl::Duration limit) {
  const std::string text = absl::FormatDuration(limit);
  return rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::SLOW_READER,
                        absl::StrCat("the client did not read its stream for ", text), {{"limit", text}});
}

void JoinChunk(OutputChunk* chunk, OutputChunk next) {
  if (chunk->tokens.empty()) chunk->index = next.index;
  Append(&chunk->tokens, std::move(next.tokens));
  chunk->text += next.text;
  Append(&chunk->logprobs, std::move(next.logprobs));
  Append(&chunk->prompt_logprobs, std::move(next.prompt_logprobs));
  JoinPaths(&chunk->expert_paths, std::move(next.expert_paths));
  if (next.finished) {
    chunk->finished = true;
    chunk->reason = next.reason;
    chunk->stop_token = next.stop_token;
    chunk->stop_string = std::move(next.stop_string);
    chunk->usage = next.usage;
    chunk->timings = next.timings;
  }
}

void JoinPaths(ExpertPaths* paths, ExpertPaths next) {
  if (next.experts.empty()) return;
  if (paths->experts.empty()) {
    *paths = std::move(next);
  } else {
    Append(&paths->experts, std::move(next.experts));
  }
}

void TokenStream::Push(OutputChunk chunk, absl::Time now) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    if (chunks_.empty()) waiting_since_ = now;
    for (OutputChunk& waiting : chunks_) {
      if (waiting.choice == chunk.choice) {
        JoinChunk(&waiting, std::move(chunk));
        return;  // the reactor was notified of the first one and will pop this one, too
      }
    }
    chunks_.push_back(std::move(chunk));
  }
  Notify();
}

void TokenStream::Close(absl::Status status) {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    end_ = std::move(status);
    if (!end_.ok()) {
      chunks_.clear();
      waiting_since_ = absl::InfiniteFuture();
    }
  }
  Notify();
}

void TokenStream::Forgive(absl::Duration pause, absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (!chunks_.empty()) waiting_since_ = WithoutPause(waiting_since_, pause, now);
}

void TokenStream::Attach(std::function<void()> notify) {
  absl::MutexLock lock(&notify_mu_);
  notify_ = std::move(notify);
  if (notify_) notify_();
}

std::optional<OutputChunk> TokenStream::Pop(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (chunks_.empty()) return std::nullopt;
  if (std::optional<OutputChunk> part = CutChunk(&chunks_.front())) {
    waiting_since_ = now;
    return part;
  }
  OutputChunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  waiting_since_ = chunks_.empty() ? absl::InfiniteFuture() : now;
  return chunk;
}

bool TokenStream::Finished(absl::Status* status) const {
  absl::MutexLock lock(&mu_);
  if (!closed_ || !chunks_.empty()) return false;
  *status = end_;
  return true;
}

void TokenStream::Notify() {
  absl::MutexLock lock(&notify_mu_);
  if (notify_) notify_();
}

}  // namespace switchyard::server
