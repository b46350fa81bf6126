// Decoder stages that hold text back, and base classes of stages.  Thread-compatible.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/models/byte_level.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/tokenizer/stages/decoder.h"

namespace switchyard::tokenizer {

// Base of all stages but the last: knows the next one.
class ChainedStage : public DecoderStage {
 public:
  explicit ChainedStage(std::unique_ptr<DecoderStage> next) : next_(std::move(next)) {}
  absl::Status EndToken() override { return next_->EndToken(); }
  absl::Status Finish() override { return next_->Finish(); }

 protected:
  DecoderStage& next() { return *next_; }
  // Passes on a part of a token, which may be empty.
  absl::Status EmitText(absl::string_view text) { return text.empty() ? absl::OkStatus() : next_->Text(text); }
  absl::Status Emit(absl::string_view token) {
    RETURN_IF_ERROR(next_->Text(token));
    return next_->EndToken();
  }

 private:
  const std::unique_ptr<DecoderStage> next_;
};

// Base of stages that need whole tokens: collects each token and passes it with its index.
class WholeTokenStage : public ChainedStage {
 public:
  using ChainedStage::ChainedStage;
  absl::Status Text(absl::string_view text) override {
    token_.append(text.data(), text.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() override { return Token(std::exchange(token_, {}), index_++); }

 protected:
  virtual absl::Status Token(std::string token, size_t index) = 0;

 private:
  std::string token_;
  size_t index_ = 0;
};

// Joins all tokens into one.
class FuseStage : public ChainedStage {
 public:
  using ChainedStage::ChainedStage;
  absl::Status Text(absl::string_view text) override { return next().Text(text); }
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override {
    RETURN_IF_ERROR(next().EndToken());
    return next().Finish();
  }
};

// Decodes the byte-level alphabet to bytes over all tokens, into one token; invalid UTF-8 becomes U+FFFD.
class ByteLevelStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  absl::Status Finish() override {
    std::string text;
    utf8_.Flush(&text);
    RETURN_IF_ERROR(Emit(text));
    return next().Finish();
  }

 private:
  absl::Status Token(std::string token, size_t) override {
    std::string bytes, text;
    AppendByteLevelDecoded(token, &bytes);
    utf8_.Append(bytes, &text);
    return EmitText(text);
  }
  LossyUtf8 utf8_;
};

// Turns a run of <0xHH> tokens into the text that its bytes spell, or, if they are not UTF-8, one U+FFFD per byte of
// the whole run; so it holds the run until its end.
class ByteFallbackStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  absl::Status Finish() override {
    RETURN_IF_ERROR(EmitRun());
    return next().Finish();
  }

 private:
  absl::Status Token(std::string token, size_t) override {
    if (const int byte = ByteOfToken(token); byte >= 0) {
      run_.push_back(static_cast<char>(byte));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(EmitRun());
    return Emit(token);
  }
  absl::Status EmitRun() {
    if (run_.empty()) return absl::OkStatus();
    const std::string run = std::exchange(run_, {});
    if (FindInvalidUtf8(run) == absl::string_view::npos) return Emit(run);
    for (size_t i = 0; i < run.size(); ++i) RETURN_IF_ERROR(Emit(kReplacementCharacter));
    return absl::OkStatus();
  }
  std::string run_;
};

// Replaces a literal inside each token; holds back a tail that may begin the literal.
class ReplaceLiteralStage : public ChainedStage {
 public:
  // Borrows both strings.  REQUIRES: literal is not empty.
  ReplaceLiteralStage(absl::string_view literal, absl::string_view content, std::unique_ptr<DecoderStage> next)
      : ChainedStage(std::move(next)), literal_(literal), content_(content) {}

  absl::Status Text(absl::string_view text) override {
    held_.append(text.data(), text.size());
    std::string out;
    size_t done = 0;
    for (size_t at = held_.find(literal_.data(), 0, literal_.size()); at != std::string::npos;
         at = held_.find(literal_.data(), done, literal_.size())) {
      out.append(held_, done, at - done);
      out.append(content_.data(), content_.size());
      done = at + literal_.size();
    }
    // Holds back the longest tail that is a proper prefix of the literal.
    size_t keep = std::min(held_.size() - done, literal_.size() - 1);
    while (keep > 0 && !absl::StartsWith(literal_, absl::string_view(held_).substr(held_.size() - keep))) --keep;
    out.append(held_, done, held_.size() - keep - done);
    held_.erase(0, held_.size() - keep);
    return EmitText(out);
  }
  absl::Status EndToken() override {
    RETURN_IF_ERROR(EmitText(std::exchange(held_, {})));
    return next().EndToken();
  }

 private:
  const absl::string_view literal_;
  const absl::string_view content_;
  std::string held_;
};

// Removes up to `start` characters `content` from each token's beginning and up to `stop` from its end.
class StripStage : public ChainedStage {
 public:
  struct Options {
    char32_t content;
    int64_t start;
    int64_t stop;
  };
  StripStage(Options options, std::unique_ptr<DecoderStage> next) : ChainedStage(std::move(next)), options_(options) {}

  absl::Status Text(absl::string_view text) override {
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = DecodeUtf8(text, &pos);
      const bool strippable = c == options_.content;
      if (!started_ && strippable && cut_ < options_.start) {
        ++cut_;
        continue;
      }
      started_ = true;
      if (strippable && options_.stop > 0) {
        // Only the last `stop` characters of a run may be at the token's end.
        if (++num_held_ > options_.stop) {
          AppendUtf8(c, &out);
          --num_held_;
        }
        continue;
      }
      for (; num_held_ > 0; --num_held_) AppendUtf8(options_.content, &out);
      AppendUtf8(c, &out);
    }
    return EmitText(out);
  }
  absl::Status EndToken() override {
    cut_ = 0;
    started_ = false;
    num_held_ = 0;
    return next().EndToken();
  }

 private:
  const Options options_;
  int64_t cut_ = 0;       // removed from this token's beginning so far
  bool started_ = false;  // past the beginning
  int64_t num_held_ = 0;  // characters `content` at the end so far
};

}  // namespace switchyard::tokenizer
