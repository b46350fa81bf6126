#include "server/text/text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/text/model_files.h"
#include "server/text/tokenizer/tokenizer_config.h"

namespace switchyard::text {
namespace {

constexpr char kTokenizerFile[] = "tokenizer.json";
constexpr char kEosFile[] = "tokenizer_config.json";
constexpr int64_t kMaxEosFileBytes = int64_t{64} << 20;

absl::Status NoTokenizer(const char* field) {
  return rpc::MakeError(
      absl::StatusCode::kFailedPrecondition, v1::NO_TOKENIZER,
      absl::StrCat(field, ": this model has no tokenizer; send token_ids, or start the server with --tokenizer=FILE"),
      {{"field", field}});
}

// Loads the tokenizer: any file for --tokenizer; the model's own must not be a link that leads out of its directory.
// Null: there is none.
absl::StatusOr<std::unique_ptr<const tokenizer::Tokenizer>> LoadTokenizer(const server::ServerConfig& config,
                                                                          const ModelDir& dir) {
  if (!config.tokenizer.empty()) return tokenizer::Tokenizer::FromFile(config.tokenizer);
  if (!dir.Exists(kTokenizerFile)) return nullptr;
  const absl::StatusOr<std::string> json = dir.ReadSmallFile(kTokenizerFile, tokenizer::kMaxTokenizerBytes);
  if (!json.ok()) return absl::Status(json.status().code(), absl::StrCat(config.model, "/", json.status().message()));
  return tokenizer::Tokenizer::FromJson(*json, absl::StrCat(config.model, "/", kTokenizerFile));
}

// The EOS token that the tokenizer names; nullopt where it names none.
absl::StatusOr<std::optional<std::string>> EosOfTokenizer(const ModelDir& dir) {
  const absl::StatusOr<std::string> json = dir.ReadSmallFile(kEosFile, kMaxEosFileBytes);
  if (absl::IsNotFound(json.status())) return std::nullopt;
  if (!json.ok()) return json.status();
  return tokenizer::ReadEosToken(*json, kEosFile);
}

// Adds the tokenizer's EOS token to the model's: finetunes for chats often have theirs there alone, and their base's in
// config.json and generation_config.json.
void AddEosOfTokenizer(const ModelDir& dir, const tokenizer::Tokenizer& tokenizer, std::vector<int32_t>* ids) {
  const absl::StatusOr<std::optional<std::string>> eos = EosOfTokenizer(dir);
  if (!eos.ok()) return LogWarn("the tokenizer's eos_token is not read: ", eos.status().message());
  const int32_t id = eos->has_value() ? tokenizer.TokenToId(**eos) : -1;
  if (id >= 0 && std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
}

// By the flags, or by the chat template's markers.
absl::StatusOr<OutputFormat> ChooseOutputFormat(const server::ServerConfig& config, const ModelChatTemplate* chat) {
  OutputFormat format;
  if (chat != nullptr) format = FormatOfTemplate(chat->source());
  const auto flag = [](const char* name, const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
  };
  if (config.tool_call_parser == "none") format.tools = nullptr;
  if (config.reasoning_parser == "none") format.reasoning = nullptr;
  if (config.tool_call_parser != "auto" && config.tool_call_parser != "none") {
    const auto found = FindToolFormat(config.tool_call_parser);
    if (!found.ok()) return flag("tool_call_parser", found.status());
    format.tools = *found;
  }
  if (config.reasoning_parser != "auto" && config.reasoning_parser != "none") {
    const auto found = FindReasoningFormat(config.reasoning_parser);
    if (!found.ok()) return flag("reasoning_parser", found.status());
    format.reasoning = *found;
  }
  if (format.tools != nullptr || format.reasoning != nullptr) {
    LogInfo("output: tool calls as ", format.tools != nullptr ? format.tools->name : "text", ", reasoning as ",
            format.reasoning != nullptr ? format.reasoning->name : "text");
  }
  return format;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TextProcessor>> TextProcessor::Load(const server::ServerConfig& config) {
  auto processor = std::unique_ptr<TextProcessor>(new TextProcessor());
  if (config.only_trains) return processor;
  const absl::Time start = absl::Now();
  ASSIGN_OR_RETURN(const ModelDir dir, OpenModelFiles(config.model, config.tokenizer.empty()));
  ASSIGN_OR_RETURN(processor->defaults_, LoadGenerationDefaults(dir));
  ASSIGN_OR_RETURN(processor->tokenizer_, LoadTokenizer(config, dir));
  if (processor->tokenizer_ != nullptr) {
    AddEosOfTokenizer(dir, *processor->tokenizer_, &processor->defaults_.eos_token_ids);
    LogInfo("tokenizer: ", processor->tokenizer_->vocab_size(), " tokens, read in ",
            absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1))));
  } else {
    LogInfo("no tokenizer: token ids only");
  }
  absl::StatusOr<ModelChatTemplate> chat = ModelChatTemplate::Load(dir, config.model, config.chat_template);
  if (chat.ok()) {
    processor->template_ = *std::move(chat);
  } else if (!absl::IsNotFound(chat.status()) || !config.chat_template.empty()) {
    return chat.status();
  }
  ASSIGN_OR_RETURN(processor->output_format_, ChooseOutputFormat(config, processor->chat_template()));
  return processor;
}

absl::StatusOr<std::vector<int32_t>> TextProcessor::Encode(absl::string_view text,
                                                           const tokenizer::EncodeOptions& options) const {
  if (tokenizer_ == nullptr) return NoTokenizer("text");
  return tokenizer_->Encode(text, options);
}

absl::StatusOr<std::string> TextProcessor::Render(const ChatRequest& request, const ChatTemplateClock& clock) const {
  if (!template_) return absl::FailedPreconditionError("this model has no chat template");
  ASSIGN_OR_RETURN(RenderedChat chat, template_->RenderChat(request, clock));
  return std::move(chat.text);
}

absl::StatusOr<std::string> TextProcessor::Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const {
  if (tokenizer_ == nullptr) return NoTokenizer("token_ids");
  return tokenizer_->Decode(ids, skip_special_tokens);
}

tokenizer::TokenPiece TextProcessor::PieceOf(int32_t id) const {
  return tokenizer_ == nullptr ? tokenizer::TokenPiece() : tokenizer_->PieceOf(id);
}

std::string TextProcessor::TokenText(int32_t id) const {
  return tokenizer_ == nullptr ? std::string() : std::string(tokenizer_->IdToToken(id));
}

}  // namespace switchyard::text
