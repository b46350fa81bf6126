#include "server/text/chat_template/model_chat_template.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::text {
namespace {

using Json = nlohmann::ordered_json;
using PlainJson = nlohmann::json;  // for files, since lookups in an ordered object are linear

constexpr size_t kMaxConfigBytes = size_t{64} << 20;
constexpr int kMaxConfigDepth = 64;
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr char kTemplateFolder[] = "additional_chat_templates";  // further templates, by name
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token",  "sep_token",
                                          "pad_token", "cls_token", "mask_token", "additional_special_tokens"};

// Returns nullopt if there is no such file.
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

// Reads a file of the model's directory; nullopt if there is no such file.
absl::StatusOr<std::optional<std::string>> ReadOwn(const ModelDir& dir, const std::string& path,
                                                   const std::string& name, size_t max_bytes) {
  absl::StatusOr<std::string> text = dir.ReadSmallFile(name, static_cast<int64_t>(max_bytes));
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat(path, "/", text.status().message()));
  return *std::move(text);
}

// Returns an empty object if there is no such file.
absl::StatusOr<PlainJson> ReadConfig(const ModelDir& dir, const std::string& dir_path, const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadOwn(dir, dir_path, name, kMaxConfigBytes));
  if (!text.has_value()) return PlainJson::object();
  return ParseJsonObject(absl::StrCat(dir_path, "/", name), *text, LenientJson(kMaxConfigDepth));
}

absl::StatusOr<ChatTemplate> ParseFrom(const std::string& path, absl::string_view source,
                                       const ChatTemplateLimits& limits) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source, limits);
  if (!parsed.ok()) return absl::Status(parsed.status().code(), absl::StrCat(path, ": ", parsed.status().message()));
  return parsed;
}

// Returns a token's text, given as a string or as an added token {"content": …}; null for anything else.
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

// Leaves out keys that are null, as HuggingFace does, since many templates would print "None".
Json WithoutNulls(const Json& message) {
  Json out = Json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) out[key] = value;
  }
  return out;
}

// Clients send reasoning under one of three names; templates read the first or, for gpt-oss, the second.
Json WithReasoning(const Json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(name) || message[name].is_null()) continue;
    Json out = {{"thinking", message[name]}};
    out.update(message);
    out["reasoning_content"] = message[name];
    return out;
  }
  return message;
}

constexpr char kProbe[] = "Switchyard-probes-content";

// Renders a user's message with that content; returns an empty text if the template fails.
std::string Try(const ChatTemplate& chat, Json variables, Json content) {
  variables["messages"] = Json::array({{{"role", "user"}, {"content", std::move(content)}}});
  const absl::StatusOr<RenderedChat> out = chat.RenderChat(variables, {absl::UnixEpoch(), absl::UTCTimeZone()});
  return out.ok() ? out->text : std::string();
}

// Whether `chat` prints content that is a text, but not content that is a list of parts ([{"type": "text", "text":
// "Hi"}]): it fails on them, drops them, or prints the list itself.  Found by rendering one message both ways; false if
// the template renders neither.
bool KnowsTextOnly(const ChatTemplate& chat, const Json& variables) {
  if (!absl::StrContains(Try(chat, variables, kProbe), kProbe)) return false;
  const std::string parts = Try(chat, variables, Json::array({{{"type", "text"}, {"text", kProbe}}}));
  // The end of the part as Python's repr and as JSON print it.
  const bool printed = absl::StrContains(parts, absl::StrCat("'text': '", kProbe)) ||
                       absl::StrContains(parts, absl::StrCat("\"text\": \"", kProbe));
  return printed || !absl::StrContains(parts, kProbe);
}

// Joins the text parts of each message's content with line feeds, as vLLM does; a part may also be a bare text.
// InvalidArgument names the first part that is no text (an image, say).
absl::Status JoinContentParts(Json* messages) {
  for (size_t m = 0; m < messages->size(); ++m) {
    const auto content = (*messages)[m].find("content");
    if (content == (*messages)[m].end() || !content->is_array()) continue;
    std::string joined;
    for (size_t p = 0; p < content->size(); ++p) {
      const Json& part = (*content)[p];
      const Json text = part.is_object() ? part.value("text", Json()) : part;
      const Json type = part.is_object() ? part.value("type", Json("text")) : Json("text");
      if (type != "text" || !text.is_string()) {
        const std::string what =
            type.is_string() && type != "text"
                ? absl::StrCat("has type \"", absl::CHexEscape(CutText(type.get_ref<const std::string&>(), 64)), "\"")
                : std::string("has no text");
        return absl::InvalidArgumentError(
            absl::StrCat("content[", p, "] of message ", m, " ", what, ": this model's chat template takes text only"));
      }
      absl::StrAppend(&joined, p > 0 ? "\n" : "", text.get_ref<const std::string&>());
    }
    *content = std::move(joined);
  }
  return absl::OkStatus();
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

absl::StatusOr<ModelChatTemplate> ModelChatTemplate::Load(const ModelDir& dir, const std::string& model_dir,
                                                          const std::string& override_file,
                                                          const ChatTemplateLimits& limits) {
  ModelChatTemplate out;
  const std::string config_path = absl::StrCat(model_dir, "/", kConfigFile);
  ASSIGN_OR_RETURN(const PlainJson config, ReadConfig(dir, model_dir, kConfigFile));
  ASSIGN_OR_RETURN(const PlainJson map, ReadConfig(dir, model_dir, "special_tokens_map.json"));
  out.special_tokens_ = SpecialTokens(config, map);

  if (!override_file.empty()) {
    ASSIGN_OR_RETURN(const std::optional<std::string> source, ReadIfThere(override_file, limits.max_source_bytes));
    if (!source.has_value()) return absl::NotFoundError(absl::StrCat("chat template: no file ", override_file));
    ASSIGN_OR_RETURN(out.default_, ParseFrom(override_file, *source, limits));
    out.TryContents();
    return out;
  }
  RETURN_IF_ERROR(out.LoadFiles(dir, model_dir, limits));
  if (!out.default_.has_value() && !out.tool_use_.has_value()) {
    RETURN_IF_ERROR(out.LoadConfig(config.value("chat_template", PlainJson()), config_path, limits));
  }
  out.TryContents();
  if (out.default_.has_value() || out.tool_use_.has_value()) return out;
  return absl::NotFoundError(absl::StrCat("chat template: neither ", model_dir, "/", kTemplateFile, " nor ",
                                          config_path,
                                          " has one; pass --chat_template=FILE, or send text instead of messages"));
}

void ModelChatTemplate::TryContents() {
  Json variables = special_tokens_;
  variables["documents"] = variables["tools"] = nullptr;
  variables["add_generation_prompt"] = true;
  if (default_.has_value()) default_knows_text_only_ = KnowsTextOnly(*default_, variables);
  if (!tool_use_.has_value()) return;
  variables["tools"] = Json::parse(
      R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object",
          "properties": {"x": {"type": "string", "description": "d"}}, "required": ["x"]}}}])");
  tool_use_knows_text_only_ = KnowsTextOnly(*tool_use_, variables);
}

// As in transformers, a template file replaces all templates of the configuration.
absl::Status ModelChatTemplate::LoadFiles(const ModelDir& dir, const std::string& path,
                                          const ChatTemplateLimits& limits) {
  ASSIGN_OR_RETURN(const std::optional<std::string> source, ReadOwn(dir, path, kTemplateFile, limits.max_source_bytes));
  if (source.has_value()) {
    ASSIGN_OR_RETURN(default_, ParseFrom(absl::StrCat(path, "/", kTemplateFile), *source, limits));
  }
  const absl::StatusOr<ModelDir> folder = dir.Folder(kTemplateFolder);
  if (absl::IsNotFound(folder.status())) return absl::OkStatus();
  RETURN_IF_ERROR(folder.status());
  const std::string folder_path = absl::StrCat(path, "/", kTemplateFolder);
  for (const auto& [name, slot] : {std::pair("default.jinja", &default_), std::pair("tool_use.jinja", &tool_use_)}) {
    ASSIGN_OR_RETURN(const std::optional<std::string> more,
                     ReadOwn(*folder, folder_path, name, limits.max_source_bytes));
    if (more.has_value()) {
      ASSIGN_OR_RETURN(*slot, ParseFrom(absl::StrCat(folder_path, "/", name), *more, limits));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelChatTemplate::LoadConfig(const nlohmann::json& templates, const std::string& path,
                                           const ChatTemplateLimits& limits) {
  if (templates.is_null()) return absl::OkStatus();
  if (templates.is_string()) {
    ASSIGN_OR_RETURN(default_, ParseFrom(path, templates.get_ref<const std::string&>(), limits));
    return absl::OkStatus();
  }
  if (!templates.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": chat_template is neither text nor a list"));
  }
  for (const PlainJson& entry : templates) {
    const bool well_formed = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                             entry.contains("template") && entry["template"].is_string();
    if (!well_formed) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": chat_template must list {name, template}"));
    }
    if (entry["name"] != "default" && entry["name"] != "tool_use") continue;
    std::optional<ChatTemplate>& slot = entry["name"] == "default" ? default_ : tool_use_;
    ASSIGN_OR_RETURN(slot, ParseFrom(path, entry["template"].get_ref<const std::string&>(), limits));
  }
  return absl::OkStatus();
}

absl::StatusOr<RenderedChat> ModelChatTemplate::RenderChat(const ChatRequest& request,
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
  for (const Json& message : request.messages) variables["messages"].push_back(WithReasoning(WithoutNulls(message)));
  if (for_tools ? tool_use_knows_text_only_ : default_knows_text_only_) {
    RETURN_IF_ERROR(JoinContentParts(&variables["messages"]));
  }
  variables["tools"] = request.tools;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  return (for_tools ? *tool_use_ : *default_).RenderChat(variables, clock);
}

}  // namespace switchyard::text
