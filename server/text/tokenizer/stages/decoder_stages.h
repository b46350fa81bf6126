// The stages of decoder.h that hold text back, and the base of those that need whole tokens.  Thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "server/text/tokenizer/pattern.h"
#include "server/text/tokenizer/stages/decoder.h"

namespace switchyard::tokenizer {

// The byte of a token "<0xHH>", or -1.
int ByteOfToken(absl::string_view token);

// Base of all: knows the next stage.
class ChainedStage : public DecoderStage {
 public:
  explicit ChainedStage(std::unique_ptr<DecoderStage> next) : next_(std::move(next)) {}
  absl::Status EndToken() override { return next_->EndToken(); }
  absl::Status Finish() override { return next_->Finish(); }

 protected:
  DecoderStage& next() { return *next_; }
  absl::Status Emit(absl::string_view token) {
    RETURN_IF_ERROR(next_->Text(token));
    return next_->EndToken();
  }

 private:
  const std::unique_ptr<DecoderStage> next_;
};

// Collects each token and gives it whole, with its place in the sequence.
class WholeTokenStage : public ChainedStage {
 public:
  using ChainedStage::ChainedStage;
  absl::Status Text(absl::string_view text) override {
    token_.append(text.data(), text.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() override {
    std::string token;
    token.swap(token_);
    return Token(std::move(token), index_++);
  }

 protected:
  virtual absl::Status Token(std::string token, size_t index) = 0;

 private:
  std::string token_;
  size_t index_ = 0;
};

// All tokens become one.
class FuseStage : public ChainedStage {
 public:
  using ChainedStage::ChainedStage;
  absl::Status Text(absl::string_view text) override { return next().Text(text); }
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override;
};

// The byte-level alphabet back to bytes, over all tokens; what is no UTF-8 becomes U+FFFD.  One token comes out.
class ByteLevelStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  absl::Status Finish() override;

 private:
  absl::Status Token(std::string token, size_t index) override;
  LossyUtf8 utf8_;
};

// A run of <0xHH> tokens becomes the text that its bytes spell, or one U+FFFD per byte: for the whole run, so it is
// held until the run ends.
class ByteFallbackStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  absl::Status Finish() override;

 private:
  absl::Status Token(std::string token, size_t index) override;
  absl::Status EmitRun();
  std::string run_;
};

// Replaces a literal inside each token; holds back a tail that may begin the literal.
class ReplaceLiteralStage : public ChainedStage {
 public:
  // Borrows both strings.  REQUIRES: literal is not empty.
  ReplaceLiteralStage(absl::string_view literal, absl::string_view content, std::unique_ptr<DecoderStage> next)
      : ChainedStage(std::move(next)), literal_(literal), content_(content) {}
  absl::Status Text(absl::string_view text) override;
  absl::Status EndToken() override;

 private:
  const absl::string_view literal_;
  const absl::string_view content_;
  std::string held_;
};

// Takes up to `start` characters `content` from each token's beginning and up to `stop` from its end.
class StripStage : public ChainedStage {
 public:
  struct Options {
    char32_t content;
    int64_t start;
    int64_t stop;
  };
  StripStage(Options options, std::unique_ptr<DecoderStage> next) : ChainedStage(std::move(next)), options_(options) {}
  absl::Status Text(absl::string_view text) override;
  absl::Status EndToken() override;

 private:
  const Options options_;
  int64_t cut_ = 0;       // taken from this token's beginning so far
  bool started_ = false;  // past the beginning
  int64_t num_held_ = 0;  // characters `content` at the end so far
};

}  // namespace switchyard::tokenizer
