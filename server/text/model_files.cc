#include "server/text/model_files.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/gguf/gguf_file.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/gguf_vocabulary.h"

namespace switchyard::text {
namespace {

using Json = nlohmann::json;
using Texts = absl::btree_map<std::string, std::string>;

constexpr char kTokenizerKeys[] = "tokenizer.ggml.";
constexpr char kTemplateKey[] = "tokenizer.chat_template";
// Of tokenizer_config.json, and the keys of their ids.
constexpr std::pair<const char*, const char*> kSpecialTokens[] = {{"bos_token", "bos_token_id"},
                                                                  {"eos_token", "eos_token_id"},
                                                                  {"unk_token", "unknown_token_id"},
                                                                  {"pad_token", "padding_token_id"}};
// Of generation_config.json, and the keys of the same meaning.
constexpr std::pair<const char*, const char*> kSampling[] = {{"temperature", "general.sampling.temp"},
                                                             {"top_p", "general.sampling.top_p"},
                                                             {"min_p", "general.sampling.min_p"},
                                                             {"repetition_penalty", "general.sampling.penalty_repeat"}};
constexpr char kTopK[] = "general.sampling.top_k";

std::string TextOf(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

absl::Status WrongType(const std::string& key, const char* expected, const GgufValue& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", key, "\": expected ", expected, ", found ", found.Description()));
}

// The keys of a vocabulary; a list that is missing is empty.
class VocabularyReader {
 public:
  explicit VocabularyReader(const GgufMetadata& metadata) : metadata_(metadata) {}

  absl::StatusOr<tokenizer::GgufVocabulary> Read() const {
    tokenizer::GgufVocabulary vocabulary;
    ASSIGN_OR_RETURN(vocabulary.model, metadata_.String(Key("model")));
    ASSIGN_OR_RETURN(vocabulary.pre, metadata_.String(Key("pre"), ""));
    ASSIGN_OR_RETURN(vocabulary.tokens, Texts("tokens"));
    ASSIGN_OR_RETURN(vocabulary.merges, Texts("merges"));
    ASSIGN_OR_RETURN(vocabulary.token_type, Types());
    ASSIGN_OR_RETURN(vocabulary.bos_token_id, Id("bos_token_id"));
    ASSIGN_OR_RETURN(vocabulary.eos_token_id, Id("eos_token_id"));
    ASSIGN_OR_RETURN(vocabulary.scores, Scores());
    for (const auto& [name, to] :
         {std::pair("add_bos_token", &vocabulary.add_bos_token), std::pair("add_eos_token", &vocabulary.add_eos_token),
          std::pair("add_space_prefix", &vocabulary.add_space_prefix)}) {
      if (!metadata_.Has(Key(name))) continue;
      ASSIGN_OR_RETURN(*to, metadata_.Bool(Key(name)));
    }
    return vocabulary;
  }

  absl::StatusOr<std::optional<int32_t>> Id(const char* name) const {
    if (!metadata_.Has(Key(name))) return std::nullopt;
    ASSIGN_OR_RETURN(const int64_t id, metadata_.Int(Key(name)));
    if (id >= 0 && id <= INT32_MAX) return static_cast<int32_t>(id);
    return absl::InvalidArgumentError(absl::StrCat("key \"", Key(name), "\": expected a token's id, found ", id));
  }

  absl::StatusOr<std::vector<absl::string_view>> Texts(const char* name) const {
    const GgufValue* const value = metadata_.Find(Key(name));
    if (value == nullptr) return std::vector<absl::string_view>();
    std::optional<std::vector<absl::string_view>> texts = value->Strings();
    if (!texts.has_value()) return WrongType(Key(name), "an array of strings", *value);
    return *std::move(texts);
  }

 private:
  static std::string Key(absl::string_view name) { return absl::StrCat(kTokenizerKeys, name); }

  absl::StatusOr<std::vector<int32_t>> Types() const {
    const GgufValue* const value = metadata_.Find(Key("token_type"));
    if (value == nullptr) return std::vector<int32_t>();
    const std::optional<std::vector<int64_t>> types = value->Ints();
    if (!types.has_value()) return WrongType(Key("token_type"), "an array of integers", *value);
    std::vector<int32_t> out;
    out.reserve(types->size());
    for (const int64_t type : *types)
      out.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, INT32_MIN, INT32_MAX)));
    return out;
  }

  absl::StatusOr<std::vector<double>> Scores() const {
    const GgufValue* const value = metadata_.Find(Key("scores"));
    if (value == nullptr) return std::vector<double>();
    std::optional<std::vector<double>> scores = value->Numbers();
    if (!scores.has_value()) return WrongType(Key("scores"), "an array of numbers", *value);
    return *std::move(scores);
  }

  const GgufMetadata& metadata_;
};

// The chat templates: "tokenizer.chat_template", and "tokenizer.chat_template.NAME" of the names that are listed.
absl::StatusOr<Json> Templates(const GgufMetadata& metadata) {
  Json templates = Json::array();
  if (metadata.Has(kTemplateKey)) {
    ASSIGN_OR_RETURN(std::string source, metadata.String(kTemplateKey));
    templates.push_back({{"name", "default"}, {"template", std::move(source)}});
  }
  const std::string named = absl::StrCat(kTemplateKey, ".tool_use");
  if (metadata.Has(named)) {
    ASSIGN_OR_RETURN(std::string source, metadata.String(named));
    templates.push_back({{"name", "tool_use"}, {"template", std::move(source)}});
  }
  return templates;
}

absl::StatusOr<std::string> TokenizerConfig(const GgufMetadata& metadata) {
  const VocabularyReader reader(metadata);
  Json config = Json::object();
  ASSIGN_OR_RETURN(Json templates, Templates(metadata));
  if (!templates.empty()) config["chat_template"] = std::move(templates);
  ASSIGN_OR_RETURN(const std::vector<absl::string_view> tokens, reader.Texts("tokens"));
  for (const auto& [name, key] : kSpecialTokens) {
    ASSIGN_OR_RETURN(const std::optional<int32_t> id, reader.Id(key));
    if (id.has_value() && static_cast<size_t>(*id) < tokens.size()) config[name] = std::string(tokens[*id]);
  }
  return TextOf(config);
}

absl::StatusOr<std::string> GenerationConfig(const GgufMetadata& metadata) {
  Json config = Json::object();
  for (const auto& [name, key] : kSampling) {
    if (!metadata.Has(key)) continue;
    ASSIGN_OR_RETURN(config[name], metadata.Number(key));
  }
  if (metadata.Has(kTopK)) {
    ASSIGN_OR_RETURN(config["top_k"], metadata.Int(kTopK));
  }
  return TextOf(config);
}

absl::StatusOr<Texts> TextsOf(const GgufMetadata& metadata, bool tokenizer) {
  Texts texts;
  ASSIGN_OR_RETURN(texts["tokenizer_config.json"], TokenizerConfig(metadata));
  ASSIGN_OR_RETURN(texts["generation_config.json"], GenerationConfig(metadata));
  ASSIGN_OR_RETURN(const std::string model, metadata.String(absl::StrCat(kTokenizerKeys, "model"), "no_vocab"));
  if (!tokenizer || model == "no_vocab" || model == "none") return texts;
  ASSIGN_OR_RETURN(const tokenizer::GgufVocabulary vocabulary, VocabularyReader(metadata).Read());
  absl::StatusOr<std::string> json = tokenizer::TokenizerJsonOf(vocabulary);
  if (!json.ok()) {
    return absl::Status(json.status().code(),
                        absl::StrCat(json.status().message(), "; --tokenizer=FILE gives the model's tokenizer.json"));
  }
  texts["tokenizer.json"] = *std::move(json);
  return texts;
}

}  // namespace

absl::StatusOr<ModelDir> OpenModelFiles(const std::string& model, bool tokenizer) {
  if (!IsGgufFile(model)) return ModelDir::Open(model);
  ASSIGN_OR_RETURN(const GgufCheckpoint checkpoint, GgufCheckpoint::Open(model));
  absl::StatusOr<Texts> texts = TextsOf(checkpoint.metadata(), tokenizer);
  if (!texts.ok()) return InFile(checkpoint.files().front()->name(), texts.status());
  return ModelDir::OfTexts(model, *std::move(texts));
}

}  // namespace switchyard::text
