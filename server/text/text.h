// The text processor: tokenizer, chat template and the model's generation defaults, loaded once, then constant.
//
// Thread-safe.  If the model lacks a part, calls that need it return NO_TOKENIZER or NO_CHAT_TEMPLATE.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config.h"
#include "server/text/chat_template/model_chat_template.h"
#include "server/text/generation_config.h"
#include "server/text/output/formats/output_format.h"
#include "server/text/tokenizer/stream_decoder.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::text {

class TextProcessor {
 public:
  // InvalidArgument names the file and its fault.  Without a model (only_trains) it has no part.
  static absl::StatusOr<std::unique_ptr<const TextProcessor>> Load(const server::ServerConfig& config);

  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  bool has_chat_template() const { return template_.has_value(); }
  // Of generation_config.json; its end tokens and the tokenizer's own.
  const GenerationDefaults& defaults() const { return defaults_; }
  // Null if the model has none.
  const tokenizer::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const ModelChatTemplate* chat_template() const { return template_.has_value() ? &*template_ : nullptr; }

  // How the model writes reasoning and tool calls.
  const OutputFormat& output_format() const { return output_format_; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const tokenizer::EncodeOptions& options) const;
  // `clock`: the date that a template prints, and when rendering must end.
  absl::StatusOr<std::string> Render(const ChatRequest& request, const ChatTemplateClock& clock) const;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const;
  // Returns the text and the bytes that one token adds; both are empty for an id without a token.
  tokenizer::TokenPiece PieceOf(int32_t id) const;
  // Returns a token as the vocabulary spells it; "" for an id without a token.
  std::string TokenText(int32_t id) const;

 private:
  TextProcessor() = default;

  std::unique_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<ModelChatTemplate> template_;
  GenerationDefaults defaults_;
  OutputFormat output_format_;
};

}  // namespace switchyard::text
