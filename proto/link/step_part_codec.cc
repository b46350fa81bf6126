#include "proto/link/step_part_codec.h"

#include <cstring>
#include <utility>

namespace switchyard::link {
namespace {

// As long as an entry.
constexpr size_t kExpertsPerEntry = 8;

v1::StepLogprob ToProto(const batching::TokenLogprob& logprob) {
  v1::StepLogprob message;
  message.set_token(logprob.token);
  message.set_logprob(logprob.logprob);
  message.set_rank(logprob.rank);
  return message;
}

batching::TokenLogprob FromProto(const v1::StepLogprob& message) {
  return {.token = message.token(), .logprob = message.logprob(), .rank = message.rank()};
}

// Moves positions out of `in` into parts of at most `budget` entries (of one token each) that `add` makes.
template <class AddFn>
void CutPositions(std::vector<batching::PositionLogprobs>* in, size_t budget, AddFn add) {
  for (size_t begin = 0; begin < in->size();) {
    std::vector<batching::PositionLogprobs> piece;
    for (size_t entries = 0; begin < in->size() && (piece.empty() || entries < budget); ++begin) {
      entries += 1 + (*in)[begin].top.size();
      piece.push_back(std::move((*in)[begin]));
    }
    add(piece);
  }
  in->clear();
}

size_t CountEntries(const std::vector<batching::PositionLogprobs>& positions) {
  size_t entries = 0;
  for (const batching::PositionLogprobs& position : positions) entries += 1 + position.top.size();
  return entries;
}

size_t CountEntries(const batching::ItemResult& item) {
  return CountEntries(item.logprobs) + CountEntries(item.prompt_logprobs) + item.expert_paths.size() / kExpertsPerEntry;
}

}  // namespace

void AppendPositions(const std::vector<batching::PositionLogprobs>& from, PositionMessages* to) {
  for (const batching::PositionLogprobs& position : from) {
    v1::StepPositionLogprobs* message = to->Add();
    *message->mutable_chosen() = ToProto(position.chosen);
    for (const batching::TokenLogprob& top : position.top) *message->add_top() = ToProto(top);
  }
}

void AppendPositions(const PositionMessages& from, std::vector<batching::PositionLogprobs>* to) {
  to->reserve(to->size() + static_cast<size_t>(from.size()));
  for (const v1::StepPositionLogprobs& message : from) {
    batching::PositionLogprobs& position = to->emplace_back();
    position.chosen = FromProto(message.chosen());
    for (const v1::StepLogprob& top : message.top()) position.top.push_back(FromProto(top));
  }
}

std::string BytesOfPaths(absl::Span<const int16_t> paths) {
  return {reinterpret_cast<const char*>(paths.data()), paths.size() * sizeof(int16_t)};
}

void AppendPaths(absl::string_view bytes, std::vector<int16_t>* to) {
  const size_t had = to->size(), more = bytes.size() / sizeof(int16_t);
  to->resize(had + more);
  if (more > 0) std::memcpy(to->data() + had, bytes.data(), more * sizeof(int16_t));  // takes no null, not even for 0
}

std::vector<v1::StepPart> CutIntoParts(const batching::StepPlan& head, batching::RankResult* result, size_t budget) {
  size_t entries = 0;
  for (const batching::ItemResult& item : result->items) entries += CountEntries(item);
  std::vector<v1::StepPart> parts;
  if (entries <= budget) return parts;
  for (size_t i = 0; i < result->items.size(); ++i) {
    const auto next = [&] {
      v1::StepPart* part = &parts.emplace_back();
      part->set_step(head.step);
      part->set_group_epoch(head.group_epoch);
      part->set_item(static_cast<int32_t>(i));
      return part;
    };
    CutPositions(&result->items[i].logprobs, budget, [&](const std::vector<batching::PositionLogprobs>& piece) {
      AppendPositions(piece, next()->mutable_logprobs());
    });
    CutPositions(&result->items[i].prompt_logprobs, budget, [&](const std::vector<batching::PositionLogprobs>& piece) {
      AppendPositions(piece, next()->mutable_prompt_logprobs());
    });
    std::vector<int16_t>& paths = result->items[i].expert_paths;
    for (size_t begin = 0; begin < paths.size(); begin += budget * kExpertsPerEntry) {
      next()->set_expert_paths(BytesOfPaths(absl::MakeSpan(paths).subspan(begin, budget * kExpertsPerEntry)));
    }
    paths.clear();
  }
  return parts;
}

bool AddPart(const v1::StepPart& message, batching::RankResult* result) {
  if (message.item() < 0 || message.item() >= static_cast<int64_t>(result->items.size())) return false;
  batching::ItemResult& item = result->items[message.item()];
  AppendPositions(message.logprobs(), &item.logprobs);
  AppendPositions(message.prompt_logprobs(), &item.prompt_logprobs);
  AppendPaths(message.expert_paths(), &item.expert_paths);
  return true;
}

}  // namespace switchyard::link
