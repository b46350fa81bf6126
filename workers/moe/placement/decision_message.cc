#include "workers/moe/placement/decision_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

void PutLong(int64_t value, std::vector<int32_t>* words) {
  words->push_back(static_cast<int32_t>(static_cast<uint64_t>(value) >> 32));
  words->push_back(static_cast<int32_t>(static_cast<uint64_t>(value)));
}

void PutPlan(const placement::SlotPlan& plan, std::vector<int32_t>* words) {
  words->push_back(plan.layer);
  words->push_back(static_cast<int32_t>(plan.changes.size()));
  for (const placement::SlotChange& change : plan.changes) {
    words->insert(words->end(), {change.device, change.slot, change.expert});
  }
}

class WordReader {
 public:
  explicit WordReader(absl::Span<const int32_t> words) : words_(words) {}

  // In [least, end).
  absl::StatusOr<int32_t> Take(const char* what, int64_t least, int64_t end) {
    if (at_ == words_.size()) {
      return absl::InternalError(absl::StrCat("decision: ends after ", at_, " words, where ", what, " should be"));
    }
    const int32_t word = words_[at_++];
    if (word >= least && word < end) return word;
    return absl::InternalError(absl::StrCat("decision: ", what, " ", word, " is outside [", least, ", ", end, ")"));
  }
  // A number of things of so many words each, which are there.
  absl::StatusOr<int32_t> TakeCount(const char* what, size_t words_each) {
    return Take(what, 0, static_cast<int64_t>((words_.size() - at_) / words_each) + 1);
  }
  absl::StatusOr<int64_t> TakeLong(const char* what) {
    ASSIGN_OR_RETURN(const int32_t high, Take(what, INT32_MIN, int64_t{1} << 31));
    ASSIGN_OR_RETURN(const int32_t low, Take(what, INT32_MIN, int64_t{1} << 31));
    return static_cast<int64_t>(uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low));
  }
  bool AtEnd() const { return at_ == words_.size(); }

 private:
  const absl::Span<const int32_t> words_;
  size_t at_ = 0;
};

absl::StatusOr<placement::SlotPlan> TakePlan(const DecisionBounds& bounds, WordReader* reader) {
  placement::SlotPlan plan;
  ASSIGN_OR_RETURN(plan.layer, reader->Take("layer", 0, bounds.num_layers));
  ASSIGN_OR_RETURN(const int32_t changes, reader->TakeCount("number of changes", 3));
  for (int32_t i = 0; i < changes; ++i) {
    placement::SlotChange change;
    ASSIGN_OR_RETURN(change.device, reader->Take("device", 0, bounds.num_ranks));
    ASSIGN_OR_RETURN(change.slot, reader->Take("slot", 0, int64_t{1} << 31));
    ASSIGN_OR_RETURN(change.expert, reader->Take("expert", placement::kEmptySlot, bounds.num_experts));
    plan.changes.push_back(change);
  }
  return plan;
}

absl::Status TakeSplit(const DecisionBounds& bounds, WordReader* reader, placement::SplitTable* split) {
  std::vector<int32_t> offsets;
  std::vector<placement::SplitPiece> pieces;
  ASSIGN_OR_RETURN(const int32_t num_offsets, reader->TakeCount("number of offsets", 1));
  for (int32_t i = 0; i < num_offsets; ++i) {
    ASSIGN_OR_RETURN(offsets.emplace_back(), reader->Take("offset", 0, int64_t{1} << 31));
  }
  ASSIGN_OR_RETURN(const int32_t num_pieces, reader->TakeCount("number of pieces", 2));
  for (int32_t i = 0; i < num_pieces; ++i) {
    placement::SplitPiece& piece = pieces.emplace_back();
    ASSIGN_OR_RETURN(piece.device, reader->Take("device", 0, bounds.num_ranks));
    ASSIGN_OR_RETURN(piece.rows, reader->Take("rows", 1, int64_t{1} << 31));
  }
  absl::StatusOr<placement::SplitTable> table =
      placement::SplitTable::FromPieces(bounds.num_ranks, bounds.num_experts, std::move(offsets), std::move(pieces));
  if (!table.ok()) return absl::InternalError(absl::StrCat("decision: ", table.status().message()));
  *split = *std::move(table);
  return absl::OkStatus();
}

void MixPlan(placement::DecisionField field, const placement::SlotPlan& plan, placement::DecisionDigest* digest) {
  std::vector<int32_t> words;
  PutPlan(plan, &words);
  digest->Mix(field, absl::MakeConstSpan(words));
}

}  // namespace

std::vector<int32_t> EncodeDecision(const placement::LayerDecision& decision) {
  std::vector<int32_t> words;
  PutLong(decision.number, &words);
  words.push_back(decision.layer);
  PutPlan(decision.demand, &words);
  words.push_back(static_cast<int32_t>(decision.prefetch.size()));
  for (const placement::SlotPlan& plan : decision.prefetch) PutPlan(plan, &words);
  words.push_back(static_cast<int32_t>(decision.awaited.size()));
  for (const placement::AwaitedCopy& copy : decision.awaited) {
    words.insert(words.end(), {copy.device, copy.slot});
    PutLong(copy.decision, &words);
  }
  const absl::Span<const int32_t> offsets = decision.split.offsets();
  words.push_back(static_cast<int32_t>(offsets.size()));
  words.insert(words.end(), offsets.begin(), offsets.end());
  words.push_back(static_cast<int32_t>(decision.split.pieces().size()));
  for (const placement::SplitPiece& piece : decision.split.pieces())
    words.insert(words.end(), {piece.device, piece.rows});
  return words;
}

absl::StatusOr<placement::LayerDecision> DecodeDecision(absl::Span<const int32_t> words, const DecisionBounds& bounds) {
  WordReader reader(words);
  placement::LayerDecision decision;
  ASSIGN_OR_RETURN(decision.number, reader.TakeLong("number"));
  ASSIGN_OR_RETURN(decision.layer, reader.Take("layer", 0, bounds.num_layers));
  ASSIGN_OR_RETURN(decision.demand, TakePlan(bounds, &reader));
  ASSIGN_OR_RETURN(const int32_t plans, reader.TakeCount("number of plans", 2));
  for (int32_t i = 0; i < plans; ++i) {
    ASSIGN_OR_RETURN(placement::SlotPlan plan, TakePlan(bounds, &reader));
    decision.prefetch.push_back(std::move(plan));
  }
  ASSIGN_OR_RETURN(const int32_t awaited, reader.TakeCount("number of awaited copies", 4));
  for (int32_t i = 0; i < awaited; ++i) {
    placement::AwaitedCopy& copy = decision.awaited.emplace_back();
    ASSIGN_OR_RETURN(copy.device, reader.Take("device", 0, bounds.num_ranks));
    ASSIGN_OR_RETURN(copy.slot, reader.Take("slot", 0, int64_t{1} << 31));
    ASSIGN_OR_RETURN(copy.decision, reader.TakeLong("decision"));
  }
  RETURN_IF_ERROR(TakeSplit(bounds, &reader, &decision.split));
  if (!reader.AtEnd()) return absl::InternalError("decision: words behind its end");
  return decision;
}

placement::DecisionDigest DigestOfSaid(const placement::LayerDecision& decision) {
  placement::DecisionDigest digest;
  digest.Mix(placement::DecisionField::kNumber, decision.number);
  digest.Mix(placement::DecisionField::kLayer, decision.layer);
  MixPlan(placement::DecisionField::kDemand, decision.demand, &digest);
  for (const placement::SlotPlan& plan : decision.prefetch) MixPlan(placement::DecisionField::kPrefetch, plan, &digest);
  for (const placement::AwaitedCopy& copy : decision.awaited) {
    digest.Mix(placement::DecisionField::kAwaited,
               absl::MakeConstSpan({int64_t{copy.device}, int64_t{copy.slot}, copy.decision}));
  }
  digest.Mix(placement::DecisionField::kSplit, decision.split.offsets());
  for (const placement::SplitPiece& piece : decision.split.pieces()) {
    digest.Mix(placement::DecisionField::kSplit, absl::MakeConstSpan({piece.device, piece.rows}));
  }
  return digest;
}

}  // namespace switchyard::moe
