#include "server/text/tokenizer/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "server/text/tokenizer/gguf_pre_tokenizers.h"

namespace switchyard::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxGgufTokens = 4'194'303;
constexpr size_t kMaxTokensWithoutMerges = 1024;  // bytes, and special tokens
constexpr size_t kMaxMergedBytes = 128;           // longer tokens are added ones
constexpr size_t kMaxScoredMerges = 2'000'000;
constexpr char kByteLevel[] = "gpt2";
constexpr char kSentencePiece[] = "llama";
constexpr char kSpaceMark[] = "\u2581";

template <class... Why>
absl::Status BadKey(absl::string_view key, const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("key \"tokenizer.ggml.", key, "\": ", why...));
}

absl::StatusOr<const GgufPreTokenizer*> FindRow(const GgufVocabulary& vocabulary) {
  std::vector<std::string> known;
  for (const GgufPreTokenizer& row : GgufPreTokenizers()) {
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
  if (vocabulary.model == kSentencePiece && vocabulary.scores.size() != size) {
    return BadKey("scores", "expected ", size, " scores, as there are tokens, found ", vocabulary.scores.size());
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

// A pair of tokens that makes another one.
struct ScoredMerge {
  double score;
  absl::string_view left, right;
};

// All pairs of tokens that make a token, the highest score first; of equal ones as transformers sorts them.
absl::StatusOr<Json> MergesByScores(const GgufVocabulary& vocabulary) {
  absl::flat_hash_map<absl::string_view, int32_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids[vocabulary.tokens[id]] = static_cast<int32_t>(id);
  std::vector<ScoredMerge> merges;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const absl::string_view token = vocabulary.tokens[id];
    if (!std::isfinite(vocabulary.scores[id])) return BadKey("scores", "the score of token ", id, " is not finite");
    if (token.size() > kMaxMergedBytes) continue;
    std::vector<ScoredMerge> own;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const ScoredMerge merge = {vocabulary.scores[id], token.substr(0, cut), token.substr(cut)};
      if (ids.contains(merge.left) && ids.contains(merge.right)) own.push_back(merge);
    }
    std::sort(own.begin(), own.end(), [&](const ScoredMerge& a, const ScoredMerge& b) {
      return std::pair(ids[a.left], ids[a.right]) < std::pair(ids[b.left], ids[b.right]);
    });
    merges.insert(merges.end(), own.begin(), own.end());
    if (merges.size() > kMaxScoredMerges) return BadKey("tokens", "more than ", kMaxScoredMerges, " merges");
  }
  const auto length = [](absl::string_view text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  };
  std::stable_sort(merges.begin(), merges.end(), [&](const ScoredMerge& a, const ScoredMerge& b) {
    return std::tuple(a.score, length(a.left), length(a.right)) > std::tuple(b.score, length(b.left), length(b.right));
  });
  Json out = Json::array();
  for (const ScoredMerge& merge : merges) {
    out.push_back(Json::array({std::string(merge.left), std::string(merge.right)}));
  }
  return out;
}

// Sets the stages and the model's options of byte-level BPE.
absl::Status SetByteLevel(const GgufVocabulary& vocabulary, const GgufPreTokenizer& row, Json* root, Json* model) {
  *model = {{"type", "BPE"}, {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", row.ignore_merges}};
  // Old files of Kimi have none, as its tokenizer merges by the ids of what comes out.
  if (vocabulary.merges.empty() && vocabulary.tokens.size() > kMaxTokensWithoutMerges) {
    return BadKey("merges", "are missing, of a vocabulary of ", vocabulary.tokens.size(), " tokens");
  }
  Json& merges = (*model)["merges"] = Json::array();
  for (const absl::string_view merge : vocabulary.merges) merges.push_back(std::string(merge));
  (*root)["normalizer"] = row.nfc ? Json{{"type", "NFC"}} : Json();
  Json stages = Json::array();
  for (const char* regex : row.stages) {
    stages.push_back({{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  stages.push_back(ByteLevelStage(false));
  (*root)["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
  (*root)["decoder"] = ByteLevelStage(true);
  return absl::OkStatus();
}

// The same of SentencePiece's BPE.
absl::Status SetSentencePiece(const GgufVocabulary& vocabulary, Json* root, Json* model) {
  const bool prefix = vocabulary.add_space_prefix.value_or(true);
  *model = {{"type", "BPE"}, {"fuse_unk", true}, {"byte_fallback", true}, {"ignore_merges", false}};
  for (size_t id = 0; id < vocabulary.token_type.size(); ++id) {
    if (vocabulary.token_type[id] != static_cast<int32_t>(GgufTokenType::kUnknown)) continue;
    (*model)["unk_token"] = std::string(vocabulary.tokens[id]);
  }
  ASSIGN_OR_RETURN((*model)["merges"], MergesByScores(vocabulary));
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back(replace(" ", kSpaceMark));
  (*root)["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  (*root)["pre_tokenizer"] = nullptr;
  Json decoders = Json::array({replace(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  (*root)["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> TokenizerJsonOf(const GgufVocabulary& vocabulary) {
  const bool sentence_piece = vocabulary.model == kSentencePiece;
  if (!sentence_piece && vocabulary.model != kByteLevel) {
    return absl::UnimplementedError(
        absl::StrCat("key \"tokenizer.ggml.model\": expected \"", kByteLevel, "\" (byte-level BPE) or \"",
                     kSentencePiece, "\" (SentencePiece's BPE), found \"", Excerpt(vocabulary.model), "\""));
  }
  const GgufPreTokenizer* row = nullptr;
  if (!sentence_piece) {
    ASSIGN_OR_RETURN(row, FindRow(vocabulary));
  }
  RETURN_IF_ERROR(CheckLists(vocabulary));
  const bool adds_bos = sentence_piece || row->adds_bos;
  const bool add_bos = vocabulary.add_bos_token.value_or(adds_bos && vocabulary.bos_token_id.has_value());
  const bool add_eos = vocabulary.add_eos_token.value_or(false);
  if (add_bos && !vocabulary.bos_token_id.has_value())
    return BadKey("bos_token_id", "is missing, and add_bos_token is true");
  if (add_eos && !vocabulary.eos_token_id.has_value())
    return BadKey("eos_token_id", "is missing, and add_eos_token is true");
  Json root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}}, model;
  RETURN_IF_ERROR(sentence_piece ? SetSentencePiece(vocabulary, &root, &model)
                                 : SetByteLevel(vocabulary, *row, &root, &model));
  Json added = Json::array();
  RETURN_IF_ERROR(AddTokens(vocabulary, &model, &added));
  root["added_tokens"] = std::move(added);
  const bool adds = add_bos || add_eos;
  root["post_processor"] = adds             ? PostProcessor(vocabulary, add_bos, add_eos)
                           : sentence_piece ? Json()
                                            : ByteLevelStage(true);
  root["model"] = std::move(model);
  return root.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace switchyard::tokenizer
