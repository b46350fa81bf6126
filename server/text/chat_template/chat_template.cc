#include "server/text/chat_template/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/interpreter/interpreter.h"
#include "server/text/chat_template/interpreter/runtime.h"
#include "server/text/chat_template/parser/ast.h"
#include "server/text/chat_template/parser/parser.h"
#include "server/text/chat_template/value_json.h"

namespace switchyard::text {
namespace {

absl::StatusOr<RenderedChat> Run(jinja::Runtime& runtime, const jinja::ast::Block& block,
                                 const nlohmann::ordered_json& variables) {
  if (!variables.is_object()) return jinja::Error("the variables must be a JSON object");
  jinja::Interpreter interpreter(&runtime);
  RETURN_IF_ERROR(interpreter.DefineGlobals());
  for (const auto& [name, json] : variables.items()) {
    ASSIGN_OR_RETURN(jinja::Value value, jinja::FromJson(runtime, json));
    interpreter.Define(name, std::move(value));
  }
  RenderedChat rendered;
  ASSIGN_OR_RETURN(rendered.text, interpreter.Render(block));
  rendered.generated = interpreter.TakeGenerated();
  return rendered;
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::ast::Block block;
  ChatTemplateLimits limits;
  std::string source;
};

const std::string& ChatTemplate::source() const { return parsed_->source; }

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source, const ChatTemplateLimits& limits) {
  absl::StatusOr<jinja::ast::Block> block = jinja::ParseTemplate(source, limits);
  if (!block.ok()) return absl::InvalidArgumentError(absl::StrCat("chat template: ", block.status().message()));
  auto parsed = std::make_shared<Parsed>();
  parsed->block = *std::move(block);
  parsed->limits = limits;
  parsed->source = std::string(source);
  return ChatTemplate(std::move(parsed));
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderChat(const nlohmann::ordered_json& variables,
                                                      const ChatTemplateClock& clock) const {
  jinja::Runtime runtime(parsed_->limits, clock);
  absl::StatusOr<RenderedChat> chat = Run(runtime, parsed_->block, variables);
  if (chat.ok()) return chat;
  const std::string place = runtime.line > 0 ? absl::StrCat(" (line ", runtime.line, ")") : "";
  return absl::Status(chat.status().code(), absl::StrCat("chat template: ", chat.status().message(), place));
}

}  // namespace switchyard::text
