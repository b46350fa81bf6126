// A model's chat templates and special tokens, read from the files where HuggingFace keeps them.
//
// Immutable and thread-safe after loading.  Reads chat_template.jinja and additional_chat_templates/NAME.jinja, else
// tokenizer_config.json's `chat_template` (a string, or a list of {name, template}); special tokens (bos_token,
// eos_token, …) from tokenizer_config.json, else from special_tokens_map.json.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/model_dir.h"
#include "server/text/chat_template/chat_template.h"

namespace switchyard::text {

struct ChatRequest {
  nlohmann::ordered_json messages;  // array of objects
  nlohmann::ordered_json tools;     // array, or null: none given
  bool add_generation_prompt = false;
  nlohmann::ordered_json template_args;  // object or null: further variables, e.g. {"enable_thinking": false}
};

class ModelChatTemplate {
 public:
  // `override_file` (--chat_template) is used instead of the model's own template when it is not empty.  NOT_FOUND:
  // there is no template.  INVALID_ARGUMENT names a malformed file's path.
  // `path`: the directory's name in messages.
  static absl::StatusOr<ModelChatTemplate> Load(const ModelDir& dir, const std::string& path,
                                                const std::string& override_file = "",
                                                const ChatTemplateLimits& limits = {});

  // Renders the prompt.  Variables are messages, tools, documents, add_generation_prompt, the special tokens, and
  // template_args, which override all but messages, tools and add_generation_prompt.  With tools, the template named
  // "tool_use" is used if there is one.  Content that is a list of parts (OpenAI's [{"type": "text", "text": "Hi"}]) is
  // joined if the template supports text only.  Tokenize the result without adding special tokens.
  absl::StatusOr<RenderedChat> RenderChat(const ChatRequest& request, const ChatTemplateClock& clock) const;

  // The source of the template that renders tools.
  const std::string& source() const { return (tool_use_.has_value() ? *tool_use_ : *default_).source(); }

 private:
  ModelChatTemplate() = default;
  absl::Status LoadFiles(const ModelDir& dir, const std::string& path, const ChatTemplateLimits& limits);
  absl::Status LoadConfig(const nlohmann::json& templates, const std::string& path, const ChatTemplateLimits& limits);
  void TryContents();

  std::optional<ChatTemplate> default_;
  std::optional<ChatTemplate> tool_use_;
  bool default_knows_text_only_ = false, tool_use_knows_text_only_ = false;
  nlohmann::ordered_json special_tokens_ = nlohmann::ordered_json::object();  // name → text
};

}  // namespace switchyard::text
