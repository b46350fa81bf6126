#include "server/text/tokenizer/stages/decoder.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/text/tokenizer/component_limits.h"
#include "server/text/tokenizer/stages/decoder_stages.h"

namespace switchyard::tokenizer {
namespace {

using DecoderPtr = std::unique_ptr<Decoder>;
using StagePtr = std::unique_ptr<DecoderStage>;

// No decoder: tokens joined with spaces.
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

// The replacement becomes a space; at the first token's characters it vanishes, where a space was prepended.
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

// English clean-up, in the order and to the letter of the original.
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

// The suffix becomes a space, but not in the last token: one token is held back.
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

// A decoder is its parameters and a way to make the stage.
template <class Make>
class SimpleDecoder : public Decoder {
 public:
  explicit SimpleDecoder(Make make) : make_(std::move(make)) {}
  StagePtr NewMigration(StagePtr next) const override { return make_(std::move(next)); }

 private:
  const Make make_;
};

template <class Make>
DecoderPtr MakeDecoder(Make make) {
  return std::make_unique<SimpleDecoder<Make>>(std::move(make));
}

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  StagePtr NewMigration(StagePtr next) const override {
    if (pattern_.literal().empty()) return std::make_unique<ReplaceRegexStage>(pattern_, content_, std::move(next));
    return std::make_unique<ReplaceLiteralStage>(pattern_.literal(), content_, std::move(next));
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class SequenceDecoder : public Decoder {
 public:
  explicit SequenceDecoder(std::vector<DecoderPtr> parts) : parts_(std::move(parts)) {}
  StagePtr NewMigration(StagePtr next) const override {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) next = (*part)->NewMigration(std::move(next));
    return next;
  }

 private:
  const std::vector<DecoderPtr> parts_;
};

absl::StatusOr<char32_t> OneCharacter(const Field& field, absl::string_view fallback) {
  ASSIGN_OR_RETURN(const std::string text, field.StringOr(fallback));
  size_t pos = 0;
  const char32_t c = text.empty() ? 0 : DecodeUtf8(text, &pos);
  if (text.empty() || pos != text.size()) return field.Expected("one character");
  return c;
}

absl::StatusOr<DecoderPtr> ParseReplace(const Field& field) {
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::Parse(field["pattern"]));
  ASSIGN_OR_RETURN(std::string content, field["content"].String());
  return std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content));
}

absl::StatusOr<DecoderPtr> ParseStrip(const Field& field) {
  constexpr int64_t kMaxCut = 1 << 20;
  StripStage::Options options;
  ASSIGN_OR_RETURN(options.content, OneCharacter(field["content"], ""));
  ASSIGN_OR_RETURN(options.start, field["start"].Int(0, kMaxCut));
  ASSIGN_OR_RETURN(options.stop, field["stop"].Int(0, kMaxCut));
  return MakeDecoder([options](StagePtr next) { return std::make_unique<StripStage>(options, std::move(next)); });
}

absl::StatusOr<DecoderPtr> ParseMetaspace(const Field& field) {
  ASSIGN_OR_RETURN(const char32_t replacement, OneCharacter(field["replacement"], "▁"));
  ASSIGN_OR_RETURN(const bool add_prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const std::string scheme, field["prepend_scheme"].StringOr(add_prefix_space ? "always" : "never"));
  if (scheme != "first" && scheme != "never" && scheme != "always") {
    return field["prepend_scheme"].Expected("first, never or always");
  }
  const bool prepended = scheme != "never";
  return MakeDecoder([replacement, prepended](StagePtr next) {
    return std::make_unique<MetaspaceStage>(replacement, prepended, std::move(next));
  });
}

absl::StatusOr<DecoderPtr> ParseWordPiece(const Field& field) {
  ASSIGN_OR_RETURN(const std::string prefix, field["prefix"].StringOr("##"));
  ASSIGN_OR_RETURN(const bool cleanup, field["cleanup"].BoolOr(true));
  // The lambda's copy of the prefix lives as long as the decoder, which outlives its stages.
  return MakeDecoder(
      [prefix, cleanup](StagePtr next) { return std::make_unique<WordPieceStage>(prefix, cleanup, std::move(next)); });
}

absl::StatusOr<DecoderPtr> ParseBpe(const Field& field) {
  ASSIGN_OR_RETURN(const std::string suffix, field["suffix"].StringOr("</w>"));
  if (suffix.empty()) return field["suffix"].Expected("a string that is not empty");
  return MakeDecoder([suffix](StagePtr next) { return std::make_unique<BpeSuffixStage>(suffix, std::move(next)); });
}

template <class Stage>
DecoderPtr Plain() {
  return MakeDecoder([](StagePtr next) { return std::make_unique<Stage>(std::move(next)); });
}

absl::StatusOr<DecoderPtr> Parse(const Field& field, int depth) {
  RETURN_IF_ERROR(CheckComponent(field, depth));
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "ByteLevel") return Plain<ByteLevelStage>();
  if (type == "ByteFallback") return Plain<ByteFallbackStage>();
  if (type == "Fuse") return Plain<FuseStage>();
  if (type == "Replace") return ParseReplace(field);
  if (type == "Strip") return ParseStrip(field);
  if (type == "Metaspace") return ParseMetaspace(field);
  if (type == "WordPiece") return ParseWordPiece(field);
  if (type == "BPEDecoder") return ParseBpe(field);
  if (type != "Sequence") {
    return field["type"].Expected(
        "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, BPEDecoder or Sequence");
  }
  const Field list = field["decoders"];
  RETURN_IF_ERROR(CheckSequence(list));
  std::vector<DecoderPtr> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(DecoderPtr part, Parse(list.at(i), depth + 1));
    parts.push_back(std::move(part));
  }
  return std::make_unique<SequenceDecoder>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> ParseDecoder(const Field& field) {
  if (!field.present()) return Plain<JoinStage>();
  return Parse(field, 0);
}

}  // namespace switchyard::tokenizer
