// Reading a BPE model from tokenizer.json.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/bpe_model.h"

namespace switchyard::tokenizer {

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
    // A path is costly to make: only for entries that are wrong.
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

// Characters below kIndexedCharacters (all of the byte-level alphabet) are looked up without hashing.
void BpeModel::IndexCharacters() {
  character_ids_.resize(kIndexedCharacters);
  for (char32_t c = 0; c < kIndexedCharacters; ++c) {
    std::string text;
    AppendUtf8(c, &text);
    character_ids_[c] = vocabulary_.IdOf(text);
  }
}

}  // namespace switchyard::tokenizer
