#include "server/text/tokenizer/stages/post_processor.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/stages/component.h"

namespace switchyard::tokenizer {
namespace {

constexpr size_t kMaxTemplateIds = 1024;

// The text's own ids are the piece {"Sequence": {"id": "A"}}; every other piece is {"SpecialToken": {"id": name}}.
absl::StatusOr<PostProcessor> ReadTemplate(const Field& field, int, int32_t id_end) {
  const Field single = field["single"];
  RETURN_IF_ERROR(single.CheckArray());
  PostProcessor result;
  bool seen_sequence = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const Field piece = single.at(i);
    if (piece["Sequence"].present()) {
      ASSIGN_OR_RETURN(const std::string id, piece["Sequence"]["id"].String());
      if (id != "A" || seen_sequence) return piece.Expected("the sequence A, once");
      seen_sequence = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::string name, piece["SpecialToken"]["id"].String());
    const Field ids = field["special_tokens"][name]["ids"];
    RETURN_IF_ERROR(ids.CheckArray());
    std::vector<int32_t>& side = seen_sequence ? result.after : result.before;
    for (size_t k = 0; k < ids.size(); ++k) {
      ASSIGN_OR_RETURN(const int64_t id, ids.at(k).Int(0, id_end - 1));
      side.push_back(static_cast<int32_t>(id));
      if (side.size() > kMaxTemplateIds)
        return single.Error(absl::StrCat("more than ", kMaxTemplateIds, " special tokens"));
    }
  }
  if (!seen_sequence) return single.Error("expected the sequence A among the pieces, found none");
  return result;
}

absl::StatusOr<int32_t> TokenId(const Field& field, int32_t id_end) {
  RETURN_IF_ERROR(field.CheckArray());
  if (field.size() != 2) return field.Expected("[token, id]");
  ASSIGN_OR_RETURN(const int64_t id, field.at(1).Int(0, id_end - 1));
  return static_cast<int32_t>(id);
}

absl::StatusOr<PostProcessor> ReadClsSep(const Field& field, int, int32_t id_end) {
  ASSIGN_OR_RETURN(const int32_t cls, TokenId(field["cls"], id_end));
  ASSIGN_OR_RETURN(const int32_t sep, TokenId(field["sep"], id_end));
  return PostProcessor{{cls}, {sep}};
}

absl::StatusOr<PostProcessor> ReadPostProcessor(const Field& field, int depth, int32_t id_end);

absl::StatusOr<PostProcessor> ReadSequencePostProcessor(const Field& field, int depth, int32_t id_end) {
  const Field list = field["processors"];
  ASSIGN_OR_RETURN(const std::vector<PostProcessor> parts, ReadParts(list, depth, ReadPostProcessor, id_end));
  PostProcessor all;
  for (const PostProcessor& part : parts) {
    if (part.before.empty() && part.after.empty()) continue;
    // HuggingFace would treat the first one's result as a pair, which no real file intends.
    if (!all.before.empty() || !all.after.empty()) return list.Expected("at most one processor that adds tokens");
    all = part;
  }
  return all;
}

constexpr std::pair<absl::string_view, ComponentReader<PostProcessor, int32_t>> kPostProcessors[] = {
    {"ByteLevel", [](const Field&, int, int32_t) { return absl::StatusOr<PostProcessor>(PostProcessor()); }},
    {"TemplateProcessing", ReadTemplate},
    {"RobertaProcessing", ReadClsSep},
    {"BertProcessing", ReadClsSep},
    {"Sequence", ReadSequencePostProcessor},
};

absl::StatusOr<PostProcessor> ReadPostProcessor(const Field& field, int depth, int32_t id_end) {
  return ReadComponent(kPostProcessors, field, depth, id_end);
}

}  // namespace

absl::StatusOr<PostProcessor> ParsePostProcessor(const Field& field, int32_t id_end) {
  if (!field.present()) return PostProcessor();
  return ReadPostProcessor(field, 0, id_end);
}

}  // namespace switchyard::tokenizer
