#include "server/text/tokenizer/gguf_vocabulary.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxGgufTokens = 4'194'303;

constexpr char kGpt2Regex[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3Regex[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Regex[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kGpt4oRegex[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct PreTokenizerRow {
  const char* name;
  const char* regex;
  bool nfc = false;            // the normalizer
  bool ignore_merges = false;  // a piece that is a token is that token
  bool adds_bos = false;       // where add_bos_token is missing
};
constexpr PreTokenizerRow kPreTokenizers[] = {
    {.name = "gpt-2", .regex = kGpt2Regex},
    {.name = "olmo", .regex = kGpt2Regex, .nfc = true},
    {.name = "llama-bpe", .regex = kLlama3Regex, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .regex = kLlama3Regex, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .regex = kLlama3Regex, .ignore_merges = true, .adds_bos = true},
    {.name = "qwen2", .regex = kQwen2Regex, .nfc = true},
    {.name = "deepseek-r1-qwen", .regex = kQwen2Regex, .nfc = true},
    {.name = "gpt-4o", .regex = kGpt4oRegex},
};

template <class... Why>
absl::Status BadKey(absl::string_view key, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("key \"tokenizer.ggml.", key, "\": ", why...));
}

absl::StatusOr<const PreTokenizerRow*> FindRow(const GgufVocabulary& vocabulary) {
  if (vocabulary.model != "gpt2") {
    return absl::UnimplementedError(absl::StrCat(
        "key \"tokenizer.ggml.model\": expected \"gpt2\" (byte-level BPE), found \"", Excerpt(vocabulary.model), "\""));
  }
  std::vector<std::string> known;
  for (const PreTokenizerRow& row : kPreTokenizers) {
    if (vocabulary.pre == row.name) return &row;
    known.push_back(row.name);
  }
  return absl::UnimplementedError(absl::StrCat("key \"tokenizer.ggml.pre\": unknown pre-tokenizer \"",
                                               Excerpt(vocabulary.pre), "\"; known: ", absl::StrJoin(known, ", ")));
}

absl::Status CheckLists(const GgufVocabulary& vocabulary) {
  const size_t size = vocabulary.tokens.size();
  if (size == 0 || size > kMaxGgufTokens)
    return BadKey("tokens", "expected 1 to ", kMaxGgufTokens, " tokens, found ", size);
  if (!vocabulary.token_type.empty() && vocabulary.token_type.size() != size) {
    return BadKey("token_type", "expected ", size, " types, as there are tokens, found ", vocabulary.token_type.size());
  }
  for (const auto& [key, id] : {std::make_pair("bos_token_id", vocabulary.bos_token_id),
                                std::make_pair("eos_token_id", vocabulary.eos_token_id)}) {
    if (id.has_value() && (*id < 0 || static_cast<size_t>(*id) >= size)) {
      return BadKey(key, "expected 0 to ", size - 1, ", found ", *id);
    }
  }
  return absl::OkStatus();
}

// Sets model.vocab, and adds to added_tokens.
absl::Status AddTokens(const GgufVocabulary& vocabulary, Json* model, Json* added) {
  Json vocab = Json::object();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int32_t type =
        vocabulary.token_type.empty() ? static_cast<int32_t>(GgufTokenType::kNormal) : vocabulary.token_type[id];
    if (type < static_cast<int32_t>(GgufTokenType::kNormal) || type > static_cast<int32_t>(GgufTokenType::kByte)) {
      return BadKey("token_type", "token ", id, ": unknown type ", type, ", expected 1 to 6");
    }
    const std::string token(vocabulary.tokens[id]);
    const auto kind = static_cast<GgufTokenType>(type);
    if (kind == GgufTokenType::kUnused) continue;  // "[PAD151700]": no text has it
    // Added tokens, too: one that model.vocab lacks would get the next free id, not its own.
    if (!vocab.emplace(token, id).second) {
      return BadKey("tokens", "token ", id, " \"", Excerpt(token), "\" is there twice");
    }
    const bool special = kind == GgufTokenType::kControl || kind == GgufTokenType::kUnknown;
    if (!special && kind != GgufTokenType::kUserDefined) continue;
    added->push_back({{"id", id},
                      {"content", token},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", special}});
  }
  (*model)["vocab"] = std::move(vocab);
  return absl::OkStatus();
}

Json PostProcessor(const GgufVocabulary& vocabulary, bool add_bos, bool add_eos) {
  Json single = Json::array();
  Json special = Json::object();
  const auto add = [&](int32_t id) {
    const std::string token(vocabulary.tokens[static_cast<size_t>(id)]);
    single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", Json::array({id})}, {"tokens", Json::array({token})}};
  };
  if (add_bos) add(*vocabulary.bos_token_id);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (add_eos) add(*vocabulary.eos_token_id);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", Json::array()}, {"special_tokens", special}};
}

Json ByteLevelStage(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

}  // namespace

absl::StatusOr<std::string> TokenizerJsonOf(const GgufVocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const PreTokenizerRow* const row, FindRow(vocabulary));
  RETURN_IF_ERROR(CheckLists(vocabulary));
  const bool add_bos = vocabulary.add_bos_token.value_or(row->adds_bos && vocabulary.bos_token_id.has_value());
  const bool add_eos = vocabulary.add_eos_token.value_or(false);
  if (add_bos && !vocabulary.bos_token_id.has_value())
    return BadKey("bos_token_id", "is missing, and add_bos_token is true");
  if (add_eos && !vocabulary.eos_token_id.has_value())
    return BadKey("eos_token_id", "is missing, and add_eos_token is true");
  Json model = {{"type", "BPE"}, {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", row->ignore_merges}};
  Json added = Json::array();
  RETURN_IF_ERROR(AddTokens(vocabulary, &model, &added));
  Json& merges = model["merges"] = Json::array();
  for (const absl::string_view merge : vocabulary.merges) merges.push_back(std::string(merge));
  Json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = row->nfc ? Json{{"type", "NFC"}} : Json();
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", row->regex}}}, {"behavior", "Isolated"}, {"invert", false}},
        ByteLevelStage(false)}}};
  root["post_processor"] = add_bos || add_eos ? PostProcessor(vocabulary, add_bos, add_eos) : ByteLevelStage(true);
  root["decoder"] = ByteLevelStage(true);
  root["model"] = std::move(model);
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace switchyard::tokenizer
