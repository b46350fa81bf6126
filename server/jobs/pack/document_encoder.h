// Encodes documents as tokens.
//
// text         what the tokenizer puts before a text (BOS), its tokens, what it puts after; all are trained
// completion   the prompt's tokens as they are served, untrained, then the completion's, trained; no token has
//              characters of both
// messages     the chat template's text, whose special tokens count; trained: trained_text.h
// pair         two documents, each a completion or messages; of messages those behind the prompt are trained
// Each document ends with the tokenizer's EOS, which is added where it is missing (in a conversation, where it does not
// close the last turn).  "<|end|>" in a text makes no special token; in a template's output it does.
//
// Constant after it is made; thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/base/io/model_dir.h"
#include "server/jobs/pack/document.h"
#include "server/text/chat_template/model_chat_template.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::server {

struct PackedTokens {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // [ids] 1 = the token is a target
  std::vector<int64_t> begins;   // [documents] indexes of their first ids
};

class DocumentEncoder {
 public:
  // Reads tokenizer.json, the EOS from tokenizer_config.json or special_tokens_map.json, and the chat template if there
  // is one.  `name`: the folder's name in messages.  FailedPrecondition: no tokenizer.json, or no EOS.
  static absl::StatusOr<DocumentEncoder> Load(const ModelDir& folder, const std::string& name);
  // The same with a tokenizer and a template (null: none) that are already loaded and outlive the encoder.
  static absl::StatusOr<DocumentEncoder> Borrow(const ModelDir& folder, const std::string& name,
                                                const tokenizer::Tokenizer* tokenizer,
                                                const text::ModelChatTemplate* chat);

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

  // InvalidArgument "<key>: what is wrong", FailedPrecondition for a conversation without a template, ResourceExhausted
  // for the bounds of template and tokenizer, Cancelled.
  absl::Status Append(const Document& document, const std::function<bool()>& cancelled, PackedTokens* out) const;

 private:
  DocumentEncoder() = default;
  absl::Status FindEos(const ModelDir& folder, const std::string& name);
  absl::Status AppendOne(const Document& document, const std::function<bool()>& cancelled, PackedTokens* out) const;
  absl::Status AppendText(const Document& document, const std::function<bool()>& cancelled, PackedTokens* out) const;
  absl::Status AppendMessages(const Document& document, const std::function<bool()>& cancelled,
                              PackedTokens* out) const;

  std::unique_ptr<const tokenizer::Tokenizer> own_tokenizer_;
  std::unique_ptr<const text::ModelChatTemplate> own_chat_;
  const tokenizer::Tokenizer* tokenizer_ = nullptr;
  const text::ModelChatTemplate* chat_ = nullptr;  // null: none
  int32_t eos_ = -1;
  std::string eos_text_;
};

}  // namespace switchyard::server
