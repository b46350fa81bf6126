#include "server/text/tokenizer/models/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::tokenizer {

absl::StatusOr<Vocabulary> Vocabulary::Parse(const Field& field) {
  RETURN_IF_ERROR(field.CheckObject());
  if (field.size() == 0) return field.Expected("at least one token");
  int64_t largest = 0;
  size_t total_bytes = 0;
  for (auto it = field.value().begin(); it != field.value().end(); ++it) {
    // The path is expensive to make, so it is made only for errors.
    const bool plain = it.value().is_number_unsigned() && it.value().get<uint64_t>() <= uint64_t{kMaxTokenId};
    if (!plain) return field[it.key()].Expected(absl::StrCat("an integer id in [0, ", kMaxTokenId, "]"));
    const auto id = it.value().get<int64_t>();
    largest = std::max(largest, id);
    total_bytes += it.key().size();
  }
  Vocabulary vocabulary;
  vocabulary.arena_.reserve(total_bytes);
  vocabulary.tokens_.resize(largest + 1);
  vocabulary.ids_.reserve(field.size());
  for (auto it = field.value().begin(); it != field.value().end(); ++it) {
    const std::string& token = it.key();
    const auto id = it.value().get<int32_t>();
    const char* begin = vocabulary.arena_.data() + vocabulary.arena_.size();
    vocabulary.arena_.insert(vocabulary.arena_.end(), token.begin(), token.end());
    const absl::string_view view(begin, token.size());
    if (vocabulary.tokens_[id].data() != nullptr) {
      return field.Error(
          absl::StrCat("id ", id, " is given twice, to ", Quote(vocabulary.tokens_[id]), " and ", Quote(token)));
    }
    vocabulary.tokens_[id] = view;
    vocabulary.ids_.emplace(view, id);
  }
  return vocabulary;
}

int32_t Vocabulary::IdOf(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

absl::string_view Vocabulary::TokenOf(int32_t id) const {
  return id >= 0 && id < id_end() ? tokens_[id] : absl::string_view();
}

}  // namespace switchyard::tokenizer
