#include "server/text/tokenizer/stages/decoder.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/text/tokenizer/stages/component.h"
#include "server/text/tokenizer/stages/decoder_stages.h"

namespace switchyard::tokenizer {
namespace {

using StagePtr = std::unique_ptr<DecoderStage>;

// Without a decoder, tokens are joined with spaces.
class JoinStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;

 private:
  absl::Status Token(std::string token, size_t index) override {
    return Emit(index > 0 ? absl::StrCat(" ", token) : token);
  }
};

class ReplaceRegexStage : public WholeTokenStage {
 public:
  ReplaceRegexStage(const Pattern& pattern, absl::string_view content, StagePtr next)
      : WholeTokenStage(std::move(next)), pattern_(pattern), content_(content) {}

 private:
  absl::Status Token(std::string token, size_t) override {
    ASSIGN_OR_RETURN(const std::string replaced, pattern_.ReplaceAll(token, content_));
    return Emit(replaced);
  }
  const Pattern& pattern_;
  const absl::string_view content_;
};

// Turns the replacement into a space; removes it at the beginning of the first token if a space was prepended.
class MetaspaceStage : public ChainedStage {
 public:
  MetaspaceStage(char32_t replacement, bool prepended, StagePtr next)
      : ChainedStage(std::move(next)), replacement_(replacement), at_first_(prepended) {}

  absl::Status Text(absl::string_view text) override {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = DecodeUtf8(text, &pos);
      if (c != replacement_) {
        AppendUtf8(c, &out);
      } else if (!at_first_) {
        out.push_back(' ');
      }
    }
    return next().Text(out);
  }
  absl::Status EndToken() override {
    at_first_ = false;
    return next().EndToken();
  }

 private:
  const char32_t replacement_;
  bool at_first_;
};

// HuggingFace's clean-up of English text, with the same replacements in the same order.
std::string CleanUp(std::string text) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = absl::StrReplaceAll(text, {{from, to}});
  return text;
}

class WordPieceStage : public WholeTokenStage {
 public:
  WordPieceStage(absl::string_view prefix, bool cleanup, StagePtr next)
      : WholeTokenStage(std::move(next)), prefix_(prefix), cleanup_(cleanup) {}

 private:
  absl::Status Token(std::string token, size_t index) override {
    if (index > 0) {
      const bool continues = absl::StartsWith(token, prefix_);
      token = continues ? token.substr(prefix_.size()) : absl::StrCat(" ", token);
    }
    return Emit(cleanup_ ? CleanUp(std::move(token)) : token);
  }
  const absl::string_view prefix_;
  const bool cleanup_;
};

// Turns the suffix into a space, except in the last token, so it holds one token back.
class BpeSuffixStage : public WholeTokenStage {
 public:
  BpeSuffixStage(absl::string_view suffix, StagePtr next) : WholeTokenStage(std::move(next)), suffix_(suffix) {}
  absl::Status Finish() override {
    if (holds_) RETURN_IF_ERROR(Emit(absl::StrReplaceAll(held_, {{suffix_, ""}})));
    return next().Finish();
  }

 private:
  absl::Status Token(std::string token, size_t) override {
    std::string before = std::exchange(held_, std::move(token));
    if (!std::exchange(holds_, true)) return absl::OkStatus();
    return Emit(absl::StrReplaceAll(before, {{suffix_, " "}}));
  }
  const absl::string_view suffix_;
  std::string held_;
  bool holds_ = false;
};

absl::StatusOr<Decoder> ReadReplaceDecoder(const Field& field, int) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  ASSIGN_OR_RETURN(std::string content, field["content"].String());
  return [pattern = std::move(pattern), content = std::move(content)](StagePtr next) -> StagePtr {
    if (pattern.literal().empty()) return std::make_unique<ReplaceRegexStage>(pattern, content, std::move(next));
    return std::make_unique<ReplaceLiteralStage>(pattern.literal(), content, std::move(next));
  };
}

absl::StatusOr<Decoder> ReadStripDecoder(const Field& field, int) {
  constexpr int64_t kMaxCut = 1 << 20;
  StripStage::Options options;
  ASSIGN_OR_RETURN(options.content, field["content"].CharacterOr(""));
  ASSIGN_OR_RETURN(options.start, field["start"].Int(0, kMaxCut));
  ASSIGN_OR_RETURN(options.stop, field["stop"].Int(0, kMaxCut));
  return [options](StagePtr next) { return std::make_unique<StripStage>(options, std::move(next)); };
}

absl::StatusOr<Decoder> ReadMetaspaceDecoder(const Field& field, int) {
  ASSIGN_OR_RETURN(const char32_t replacement, field["replacement"].CharacterOr("▁"));
  ASSIGN_OR_RETURN(const std::string scheme, ReadPrependScheme(field));
  return [replacement, prepended = scheme != "never"](StagePtr next) {
    return std::make_unique<MetaspaceStage>(replacement, prepended, std::move(next));
  };
}

// Stages borrow the lambdas' strings, which live as long as the decoders.
absl::StatusOr<Decoder> ReadWordPieceDecoder(const Field& field, int) {
  ASSIGN_OR_RETURN(const std::string prefix, field["prefix"].StringOr("##"));
  ASSIGN_OR_RETURN(const bool cleanup, field["cleanup"].BoolOr(true));
  return
      [prefix, cleanup](StagePtr next) { return std::make_unique<WordPieceStage>(prefix, cleanup, std::move(next)); };
}

absl::StatusOr<Decoder> ReadBpeDecoder(const Field& field, int) {
  ASSIGN_OR_RETURN(const std::string suffix, field["suffix"].StringOr("</w>"));
  if (suffix.empty()) return field["suffix"].Expected("a string that is not empty");
  return [suffix](StagePtr next) { return std::make_unique<BpeSuffixStage>(suffix, std::move(next)); };
}

template <class Stage>
absl::StatusOr<Decoder> ReadPlainDecoder(const Field&, int) {
  return [](StagePtr next) { return std::make_unique<Stage>(std::move(next)); };
}

absl::StatusOr<Decoder> ReadDecoder(const Field& field, int depth);

absl::StatusOr<Decoder> ReadSequenceDecoder(const Field& field, int depth) {
  ASSIGN_OR_RETURN(std::vector<Decoder> parts, ReadParts(field["decoders"], depth, ReadDecoder));
  return [parts = std::move(parts)](StagePtr next) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) next = (*part)(std::move(next));
    return next;
  };
}

constexpr std::pair<absl::string_view, ComponentReader<Decoder>> kDecoders[] = {
    {"ByteLevel", ReadPlainDecoder<ByteLevelStage>},
    {"ByteFallback", ReadPlainDecoder<ByteFallbackStage>},
    {"Fuse", ReadPlainDecoder<FuseStage>},
    {"Replace", ReadReplaceDecoder},
    {"Strip", ReadStripDecoder},
    {"Metaspace", ReadMetaspaceDecoder},
    {"WordPiece", ReadWordPieceDecoder},
    {"BPEDecoder", ReadBpeDecoder},
    {"Sequence", ReadSequenceDecoder},
};

absl::StatusOr<Decoder> ReadDecoder(const Field& field, int depth) { return ReadComponent(kDecoders, field, depth); }

}  // namespace

absl::StatusOr<Decoder> ParseDecoder(const Field& field) {
  return field.present() ? ReadDecoder(field, 0) : ReadPlainDecoder<JoinStage>(field, 0);
}

}  // namespace switchyard::tokenizer
