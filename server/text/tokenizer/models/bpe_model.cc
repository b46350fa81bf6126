#include "server/text/tokenizer/models/bpe_model.h"

#include <queue>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::tokenizer {

// A doubly linked list in an array: merging is O(1), positions stay, so that they can order the queue.
struct BpeModel::Symbol {
  int32_t id;
  int32_t previous;  // -1 = none
  int32_t next;      // -1 = none
  bool merged_away;
};

// Merges one piece's symbols.
class BpeModel::Merger {
 public:
  Merger(const BpeModel& model, const std::vector<int32_t>& ids) : model_(model), symbols_(ids.size()) {
    const auto count = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < count; ++i) symbols_[i] = {ids[i], i - 1, i + 1 < count ? i + 1 : -1, false};
    std::vector<Candidate> candidates;
    for (int32_t i = 0; i + 1 < count; ++i) {
      if (const Merge* merge = model_.FindMerge(ids[i], ids[i + 1]))
        candidates.push_back({merge->rank, i, merge->new_id});
    }
    queue_ = Queue(std::greater<Candidate>(), std::move(candidates));
  }

  absl::Status Run(WorkGuard* guard) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      RETURN_IF_ERROR(guard->Step());
      Symbol& left = symbols_[top.position];
      if (left.merged_away || left.next < 0) continue;
      Symbol& right = symbols_[left.next];
      // An entry is stale when the pair that stands here now becomes something else.
      const Merge* merge = model_.FindMerge(left.id, right.id);
      if (merge == nullptr || merge->new_id != top.new_id) continue;
      left.id = top.new_id;
      left.next = right.next;
      right.merged_away = true;
      if (right.next >= 0) symbols_[right.next].previous = top.position;
      if (left.previous >= 0) Offer(left.previous);
      if (left.next >= 0) Offer(top.position);
    }
    return absl::OkStatus();
  }

  void AppendIds(std::vector<int32_t>* ids) const {
    for (const Symbol& symbol : symbols_) {
      if (!symbol.merged_away) ids->push_back(symbol.id);
    }
  }

 private:
  struct Candidate {
    int32_t rank;
    int32_t position;
    int32_t new_id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>>;

  void Offer(int32_t position) {
    const Symbol& left = symbols_[position];
    const Merge* merge = model_.FindMerge(left.id, symbols_[left.next].id);
    if (merge != nullptr) queue_.push({merge->rank, position, merge->new_id});
  }

  const BpeModel& model_;
  std::vector<Symbol> symbols_;
  Queue queue_;
};

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

int32_t BpeModel::CharacterId(absl::string_view piece, size_t begin, size_t end) const {
  const bool prefixed = begin > 0 && !subword_prefix_.empty();
  const bool suffixed = end == piece.size() && !word_suffix_.empty();
  const absl::string_view character = piece.substr(begin, end - begin);
  if (!prefixed && !suffixed) {
    size_t pos = 0;
    const char32_t c = DecodeUtf8(character, &pos);
    return c < kIndexedCharacters ? character_ids_[c] : vocabulary_.IdOf(character);
  }
  return vocabulary_.IdOf(absl::StrCat(prefixed ? subword_prefix_ : "", character, suffixed ? word_suffix_ : ""));
}

// All of the character's bytes or none.
bool BpeModel::AppendBytes(absl::string_view character, std::vector<int32_t>* symbols) const {
  if (byte_ids_.empty()) return false;
  const size_t before = symbols->size();
  for (const char byte : character) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      symbols->resize(before);
      return false;
    }
    symbols->push_back(id);
  }
  return true;
}

absl::Status BpeModel::SplitIntoSymbols(absl::string_view piece, std::vector<int32_t>* symbols) const {
  // An unk is held back so that unknown neighbours can join it; characters that fall back to bytes pass it by, as they
  // do in the original.
  bool unk_waits = false;
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = begin + Utf8Length(piece[begin]);
    const int32_t id = CharacterId(piece, begin, end);
    if (id >= 0) {
      if (unk_waits) symbols->push_back(unk_id_);
      unk_waits = false;
      symbols->push_back(id);
    } else {
      // The prefix and the suffix belong to what falls back.
      const std::string spelled = absl::StrCat(begin > 0 ? subword_prefix_ : "", piece.substr(begin, end - begin),
                                               end == piece.size() ? word_suffix_ : "");
      if (!AppendBytes(spelled, symbols)) {
        if (missing_unk_) return UnkError(spelled, *missing_unk_);
        if (unk_waits && !fuse_unk_) symbols->push_back(unk_id_);
        unk_waits = unk_id_ >= 0;
      }
    }
    begin = end;
  }
  if (unk_waits) symbols->push_back(unk_id_);
  return absl::OkStatus();
}

absl::Status BpeModel::Tokenize(absl::string_view piece, WorkGuard* guard, std::vector<int32_t>* ids) const {
  RETURN_IF_ERROR(guard->Step());
  if (ignore_merges_) {
    if (const int32_t whole = vocabulary_.IdOf(piece); whole >= 0) {
      ids->push_back(whole);
      return absl::OkStatus();
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(piece.size());
  RETURN_IF_ERROR(SplitIntoSymbols(piece, &symbols));
  Merger merger(*this, symbols);
  RETURN_IF_ERROR(merger.Run(guard));
  merger.AppendIds(ids);
  return absl::OkStatus();
}

}  // namespace switchyard::tokenizer
