#include "server/chat_template/model_chat_template.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/json_shape.h"
#include "scheduler/base/model_dir.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;
using PlainJson = nlohmann::json;  // for files: an ordered object looks its keys up one by one

constexpr size_t kMaxConfigBytes = size_t{64} << 20;
constexpr int kMaxConfigDepth = 64;
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                          "pad_token", "cls_token", "mask_token", "additional_special_tokens"};

// nullopt: no such file.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": larger than ", max_bytes, " bytes, or unreadable"));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  return std::move(text).str();
}

// A file of the model's directory; nullopt: no such file.
absl::StatusOr<std::optional<std::string>> ReadOwn(const ModelDir& dir, const std::string& path,
                                                   const std::string& name, size_t max_bytes) {
  absl::StatusOr<std::string> text = dir.ReadSmallFile(name, static_cast<int64_t>(max_bytes));
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat(path, "/", text.status().message()));
  return *std::move(text);
}

// An empty object when there is no such file.
absl::StatusOr<PlainJson> ReadConfig(const ModelDir& dir, const std::string& dir_path, const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadOwn(dir, dir_path, name, kMaxConfigBytes));
  if (!text.has_value()) return PlainJson::object();
  const std::string path = absl::StrCat(dir_path, "/", name);
  if (const int depth = MeasureJson(*text).depth; depth > kMaxConfigDepth) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": nested ", depth, " deep, limit ", kMaxConfigDepth));
  }
  PlainJson json = PlainJson::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  return json;
}

absl::StatusOr<ChatTemplate> ParseFrom(const std::string& path, absl::string_view source,
                                       const ChatTemplateLimits& limits) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source, limits);
  if (!parsed.ok()) return absl::Status(parsed.status().code(), absl::StrCat(path, ": ", parsed.status().message()));
  return parsed;
}

// A token's text: spelled out, or as an added token {"content": …}.  Null when it is neither.
Json TokenText(const PlainJson& token) {
  if (token.is_string()) return token.get_ref<const std::string&>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get_ref<const std::string&>();
  }
  return nullptr;
}

Json SpecialTokens(const PlainJson& config, const PlainJson& map) {
  Json out = Json::object();
  for (const char* name : kSpecialTokens) {
    const PlainJson token =
        config.contains(name) && !config[name].is_null() ? config[name] : map.value(name, PlainJson());
    if (token.is_array()) {
      Json texts = Json::array();
      for (const PlainJson& item : token) texts.push_back(TokenText(item));
      out[name] = std::move(texts);
    } else if (Json text = TokenText(token); !text.is_null()) {
      out[name] = std::move(text);
    }
  }
  return out;
}

// Reasoning comes under three names; templates read the first or, for gpt-oss, the second.
Json WithReasoning(const Json& message) {
  if (!message.is_object()) return message;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(name) || message[name].is_null()) continue;
    Json out = {{"thinking", message[name]}};
    out.update(message);
    out["reasoning_content"] = message[name];
    return out;
  }
  return message;
}

absl::Status CheckRequest(const ChatRequest& request) {
  if (!request.messages.is_array()) return absl::InvalidArgumentError("messages must be a list");
  for (const Json& message : request.messages) {
    if (!message.is_object()) return absl::InvalidArgumentError("each message must be an object");
  }
  if (!request.tools.is_null() && !request.tools.is_array()) return absl::InvalidArgumentError("tools must be a list");
  if (!request.template_args.is_null() && !request.template_args.is_object()) {
    return absl::InvalidArgumentError("template arguments must be an object");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelChatTemplate> ModelChatTemplate::Load(const std::string& model_dir,
                                                          const std::string& override_file,
                                                          const ChatTemplateLimits& limits) {
  ModelChatTemplate out;
  const std::string config_path = absl::StrCat(model_dir, "/", kConfigFile);
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(model_dir));
  ASSIGN_OR_RETURN(const PlainJson config, ReadConfig(dir, model_dir, kConfigFile));
  ASSIGN_OR_RETURN(const PlainJson map, ReadConfig(dir, model_dir, "special_tokens_map.json"));
  out.special_tokens_ = SpecialTokens(config, map);

  const std::string file = override_file.empty() ? absl::StrCat(model_dir, "/", kTemplateFile) : override_file;
  ASSIGN_OR_RETURN(const std::optional<std::string> source,
                   override_file.empty() ? ReadOwn(dir, model_dir, kTemplateFile, limits.max_source_bytes)
                                         : ReadIfThere(override_file, limits.max_source_bytes));
  if (source.has_value()) {
    ASSIGN_OR_RETURN(out.default_, ParseFrom(file, *source, limits));
    return out;
  }
  if (!override_file.empty()) return absl::NotFoundError(absl::StrCat("chat template: no file ", override_file));

  const PlainJson templates = config.value("chat_template", PlainJson());
  if (templates.is_string()) {
    ASSIGN_OR_RETURN(out.default_, ParseFrom(config_path, templates.get_ref<const std::string&>(), limits));
  } else if (templates.is_array()) {
    for (const PlainJson& entry : templates) {
      const bool well_formed = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                               entry.contains("template") && entry["template"].is_string();
      if (!well_formed) {
        return absl::InvalidArgumentError(absl::StrCat(config_path, ": chat_template must list {name, template}"));
      }
      if (entry["name"] != "default" && entry["name"] != "tool_use") continue;
      std::optional<ChatTemplate>& slot = entry["name"] == "default" ? out.default_ : out.tool_use_;
      ASSIGN_OR_RETURN(slot, ParseFrom(config_path, entry["template"].get_ref<const std::string&>(), limits));
    }
  } else if (!templates.is_null()) {
    return absl::InvalidArgumentError(absl::StrCat(config_path, ": chat_template is neither text nor a list"));
  }
  if (out.default_.has_value() || out.tool_use_.has_value()) return out;
  return absl::NotFoundError(absl::StrCat("chat template: neither ", file, " nor ", config_path,
                                          " has one; pass --chat_template=FILE, or send text instead of messages"));
}

absl::StatusOr<std::string> ModelChatTemplate::Render(const ChatRequest& request,
                                                      const ChatTemplateClock& clock) const {
  RETURN_IF_ERROR(CheckRequest(request));
  const bool for_tools = !request.tools.is_null() && tool_use_.has_value();
  if (!for_tools && !default_.has_value()) {
    return absl::InvalidArgumentError("chat template: the model has one for tools only, and the request has no tools");
  }
  Json variables = special_tokens_;
  variables["documents"] = nullptr;
  if (request.template_args.is_object()) variables.update(request.template_args);
  variables["messages"] = Json::array();
  for (const Json& message : request.messages) variables["messages"].push_back(WithReasoning(message));
  variables["tools"] = request.tools;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  return (for_tools ? *tool_use_ : *default_).Render(variables, clock);
}

}  // namespace switchyard
