#include "server/text/tokenizer/models/bpe_model.h"

#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::tokenizer {

// Element of a doubly linked list in an array: merging is O(1), and positions do not change, so they can order the
// queue.
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
      // An entry is stale if the pair at its position has changed.
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

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Parse(const Field& field) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(field["vocab"]));
  std::unique_ptr<BpeModel> model(new BpeModel(std::move(vocabulary)));
  RETURN_IF_ERROR(model->ParseOptions(field));
  RETURN_IF_ERROR(model->ParseMerges(field["merges"]));
  model->IndexCharacters();
  return model;
}

absl::Status BpeModel::ParseOptions(const Field& field) {
  const Field dropout = field["dropout"];
  if (dropout.present() && (!dropout.value().is_number() || dropout.value().get<double>() != 0.0)) {
    return dropout.Expected("null or 0 (random merges are for training)");
  }
  ASSIGN_OR_RETURN(subword_prefix_, field["continuing_subword_prefix"].StringOr(""));
  ASSIGN_OR_RETURN(word_suffix_, field["end_of_word_suffix"].StringOr(""));
  ASSIGN_OR_RETURN(fuse_unk_, field["fuse_unk"].BoolOr(false));
  ASSIGN_OR_RETURN(ignore_merges_, field["ignore_merges"].BoolOr(false));
  const Field unk = field["unk_token"];
  if (unk.present()) {
    ASSIGN_OR_RETURN(const std::string token, unk.String());
    unk_id_ = vocabulary_.IdOf(token);
    if (unk_id_ < 0) missing_unk_ = token;
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, field["byte_fallback"].BoolOr(false));
  if (!byte_fallback) return absl::OkStatus();
  byte_ids_.resize(256);
  bool any = false;
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary_.IdOf(absl::StrFormat("<0x%02X>", byte));
    any |= byte_ids_[byte] >= 0;
  }
  if (!any && !unk.present()) {
    return field["byte_fallback"].Error("the vocabulary has no <0x00>...<0xFF> tokens and there is no unk_token");
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ParseMerges(const Field& list) {
  RETURN_IF_ERROR(list.CheckArray());
  if (list.size() > static_cast<size_t>(kMaxTokenId)) {
    return list.Error(absl::StrCat(list.size(), " merges, the limit is ", kMaxTokenId));
  }
  merges_.reserve(list.size());
  int32_t rank = 0;
  for (const nlohmann::json& entry : list.value()) {
    // The path is expensive to make, so it is made only for errors.
    const auto here = [&] { return list.at(&entry - &list.value()[0]); };
    if (entry.is_string()) {
      const absl::string_view line = entry.get_ref<const std::string&>();
      if (absl::StartsWith(line, "#version")) continue;
      const size_t space = line.find(' ');
      if (space == absl::string_view::npos || line.find(' ', space + 1) != absl::string_view::npos) {
        return here().Expected("two tokens and one space between them");
      }
      RETURN_IF_ERROR(AddMerge(here, line.substr(0, space), line.substr(space + 1), rank));
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      RETURN_IF_ERROR(
          AddMerge(here, entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), rank));
    } else {
      return here().Expected("\"left right\" or [\"left\", \"right\"]");
    }
    ++rank;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerge(absl::FunctionRef<Field()> here, absl::string_view left, absl::string_view right,
                                int32_t rank) {
  const auto unknown = [&](absl::string_view token) {
    return here().Error(absl::StrCat("expected tokens of model.vocab, found ", Quote(token)));
  };
  const int32_t left_id = vocabulary_.IdOf(left);
  if (left_id < 0) return unknown(left);
  const int32_t right_id = vocabulary_.IdOf(right);
  if (right_id < 0) return unknown(right);
  if (right.size() < subword_prefix_.size()) {
    return here().Error(absl::StrCat(Quote(right), " is shorter than continuing_subword_prefix"));
  }
  const std::string joined = absl::StrCat(left, right.substr(subword_prefix_.size()));
  const int32_t new_id = vocabulary_.IdOf(joined);
  if (new_id < 0) return unknown(joined);
  merges_[PairKey(left_id, right_id)] = {rank, new_id};
  return absl::OkStatus();
}

// Indexes characters below kIndexedCharacters (which include the byte-level alphabet), so that lookups need no hashing.
void BpeModel::IndexCharacters() {
  character_ids_.resize(kIndexedCharacters);
  for (char32_t c = 0; c < kIndexedCharacters; ++c) {
    std::string text;
    AppendUtf8(c, &text);
    character_ids_[c] = vocabulary_.IdOf(text);
  }
}

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

// Appends all of the character's byte tokens; returns false without a change if one is missing.
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
  // An unk is held back so that unknown neighbours can join it.  Characters that fall back to bytes are appended before
  // it, as in HuggingFace.
  bool unk_waits = false;
  for (size_t begin = 0; begin < piece.size();) {
    const size_t end = begin + Utf8Length(piece[begin]);
    const int32_t id = CharacterId(piece, begin, end);
    if (id >= 0) {
      if (unk_waits) symbols->push_back(unk_id_);
      unk_waits = false;
      symbols->push_back(id);
    } else {
      // Prefix and suffix also fall back to bytes.
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
