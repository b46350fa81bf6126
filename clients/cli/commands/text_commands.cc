// switchyard tokenize and detokenize: text to token ids and back, by the server's tokenizer.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/request_lines.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

template <class Request>
struct TextFlags {
  ServerFlags server;
  LineFlags lines;
  RequestFlags<Request> request;
  std::optional<std::string> text;      // of tokenize
  std::vector<std::string> positional;  // arguments without a flag
};

absl::Status Tokenize(client::Client* client, const v1::TokenizeRequest& request, Json* json) {
  ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client->Tokenize(request));
  *json = {{"token_ids", response.token_ids()}, {"tokens", response.tokens()}};
  if (request.has_messages()) (*json)["rendered_text"] = response.rendered_text();
  return absl::OkStatus();
}

absl::Status Detokenize(client::Client* client, const v1::DetokenizeRequest& request, Json* json) {
  ASSIGN_OR_RETURN(const v1::DetokenizeResponse response, client->Detokenize(request));
  *json = {{"text", response.text()}};
  return absl::OkStatus();
}

std::string IdsText(const Json& json) { return absl::StrJoin(json.value("token_ids", std::vector<int32_t>()), " "); }
std::string PlainText(const Json& json) { return json.value("text", ""); }

template <class Request>
absl::StatusOr<int> RunText(Console& console, const TextFlags<Request>& flags,
                            absl::Status (*ask)(client::Client*, const Request&, Json*),
                            std::string (*as_text)(const Json&), const char* positional_field) {
  ASSIGN_OR_RETURN(Json given, flags.request.Given());
  if (!flags.positional.empty()) {
    const auto field = FindField(RequestFields<Request>(), positional_field);
    const absl::StatusOr<Json> value = FlagToJson((*field)->kind, {absl::StrJoin(flags.positional, " ")});
    if (given.contains(positional_field)) {
      return BadInput(absl::StrCat("2 inputs: ", Quote(absl::StrJoin(flags.positional, " ")), " and --",
                                   positional_field, "; give one of them"));
    }
    if (!value.ok()) return BadInput(absl::StrCat(positional_field, " ", value.status().message()));
    given[positional_field] = *value;
  }
  const bool many = !flags.lines.input.empty();
  ASSIGN_OR_RETURN(const Request request, many ? Request() : BuildRequest<Request>(given));
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  const AskFn<Request> ask_server = [&client, ask](const Request& one, Json* json) {
    return ask(client.get(), one, json);
  };
  if (many) return RunLines<Request>(console, flags.lines, given, ask_server, as_text);
  Json json;
  const absl::Status status = ask_server(request, &json);
  if (flags.lines.json) {
    console.out << AsLine(status, json).text << std::endl;
  } else if (status.ok()) {
    console.out << as_text(json) << std::endl;
  }
  RETURN_IF_ERROR(status);
  return kExitOk;
}

// Adds the positional argument, then the request's flags, then the flags of all requests.
template <class Request, class Variable>
void AddFlags(const char* name, Variable* positional, const char* help, TextFlags<Request>* values, FlagSet* flags) {
  flags->BeginGroup("Request");
  flags->AddPositional(name, positional, help);
  values->request.AddTo(flags);
  values->lines.AddTo(flags);
  values->server.AddTo(flags);
}

}  // namespace

void AddTokenizeCommand(Command* app) {
  Command* command = app->AddCommand("tokenize", "turn text or a conversation into token ids");
  auto flags = std::make_shared<TextFlags<v1::TokenizeRequest>>();
  AddFlags("prompt", &flags->text, "the text, the same as --text", flags.get(), command->flags());
  command->SetFooter(
      "Examples:\n"
      "  switchyard tokenize \"The sea is\"\n"
      "  switchyard tokenize --messages='[{\"role\": \"user\", \"content\": \"Hi\"}]' --json\n"
      "Prints the ids; with --json also the tokens as the vocabulary spells them, and the text that messages were "
      "rendered to.");
  command->SetRun([flags](Console& console) {
    if (flags->text.has_value()) flags->positional = {*flags->text};
    return RunText<v1::TokenizeRequest>(console, *flags, &Tokenize, &IdsText, "text");
  });
}

void AddDetokenizeCommand(Command* app) {
  Command* command = app->AddCommand("detokenize", "turn token ids into text");
  auto flags = std::make_shared<TextFlags<v1::DetokenizeRequest>>();
  AddFlags("ids", &flags->positional, "the token ids, the same as --token_ids", flags.get(), command->flags());
  command->SetFooter("Example:\n  switchyard detokenize 5 9 11");
  command->SetRun([flags](Console& console) {
    return RunText<v1::DetokenizeRequest>(console, *flags, &Detokenize, &PlainText, "token_ids");
  });
}

}  // namespace switchyard::cli
