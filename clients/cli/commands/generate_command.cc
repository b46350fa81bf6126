// switchyard generate: text in, streamed text out; or JSON lines in, JSON lines out.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/command.h"
#include "clients/cli/generate_answer.h"
#include "clients/cli/json.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/request_lines.h"
#include "clients/cpp/client.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using v1::GenerateRequest;
using v1::GenerateResponse;

struct GenerateFlags {
  ServerFlags server;
  LineFlags lines;
  RequestFlags<GenerateRequest> request;
  std::string prompt;
};

int NumChoices(const GenerateRequest& request) { return request.has_n() ? std::clamp(request.n(), 1, 1 << 16) : 1; }

// "[64 tokens in 1.23 s: 52.0 tokens/s; first after 0.080 s; prompt 12 tokens, 0 cached; length; seed 7]"
std::string Summary(const GenerateAnswer& answer, absl::Duration total, absl::Duration first) {
  const v1::Finish& finish = answer.finish(0);
  return absl::StrFormat(
      "[%d tokens in %.2f s: %.1f tokens/s; first after %.3f s; prompt %d tokens, %d cached; %s; seed %d]",
      answer.num_tokens(), absl::ToDoubleSeconds(total),
      answer.num_tokens() / std::max(absl::ToDoubleSeconds(total), 1e-9), absl::ToDoubleSeconds(first),
      finish.usage().prompt_tokens(), finish.usage().cached_tokens(), FinishName(finish.reason()), answer.seed());
}

// Prints text as it comes, token ids if the model has no text, and several choices when they are complete.
class LiveOutput {
 public:
  LiveOutput(Console* console, bool live, bool show_ids) : console_(console), live_(live), show_ids_(show_ids) {}

  void Show(const GenerateResponse& message) {
    if (!live_) return;
    if (show_ids_) {
      for (int32_t id : message.token_ids()) console_->out << (shown_++ > 0 ? " " : "") << id;
    } else {
      console_->out << message.text();
    }
    console_->out.flush();
  }
  void End(const GenerateAnswer& answer) {
    console_->out << (live_ ? "" : AnswerText(answer.ToJson(), !show_ids_)) << std::endl;
  }

 private:
  Console* const console_;
  const bool live_;
  const bool show_ids_;
  int shown_ = 0;
};

absl::StatusOr<int> RunOne(Console& console, const GenerateFlags& flags, client::Client* client,
                           const GenerateRequest& request) {
  GenerateAnswer answer(NumChoices(request));
  bool show_ids = false;
  if (request.has_token_ids() && !flags.lines.json) {
    ASSIGN_OR_RETURN(const v1::GetModelInfoResponse model, client->GetModelInfo(request.model()));
    show_ids = !model.has_tokenizer();
  }
  LiveOutput output(&console, NumChoices(request) == 1 && !flags.lines.json, show_ids);
  const absl::Time start = absl::Now();
  absl::Time first = absl::InfiniteFuture();
  const absl::Status status = CollectAnswer(client, request, &answer, [&](const GenerateResponse& message) {
    first = std::min(first, absl::Now());
    output.Show(message);
  });
  const absl::Duration total = absl::Now() - start;
  if (flags.lines.json) {
    console.out << AsLine(status, answer.ToJson()).text << std::endl;
  } else if (!answer.empty()) {
    output.End(answer);
  }
  RETURN_IF_ERROR(status);
  console.err << Summary(answer, total, first - start) << std::endl;
  return kExitOk;
}

std::string PromptText(const Json& prompt) { return prompt.is_string() ? prompt.get<std::string>() : Dump(prompt); }

// Refuses a second prompt, and flags that would have no effect.
absl::Status CheckEffect(const GenerateFlags& flags, const Json& given) {
  std::vector<std::string> prompts;
  if (!flags.prompt.empty()) prompts.push_back(Quote(flags.prompt));
  if (!flags.prompt.empty() && !flags.lines.input.empty())
    prompts.push_back(absl::StrCat("--input=", flags.lines.input));
  for (const char* name : {"text", "token_ids", "messages"}) {
    if (given.contains(name)) prompts.push_back(absl::StrCat("--", name, "=", Quote(PromptText(given[name]))));
  }
  if (prompts.size() > 1)
    return BadInput(absl::StrCat(prompts.size(), " prompts: ", absl::StrJoin(prompts, " and "), "; give one of them"));
  for (const char* name : {"logprobs", "prompt_logprobs", "return_expert_paths"}) {
    if (given.contains(name) && !flags.lines.json) {
      return BadInput(absl::StrCat("what --", name, " asks for is shown with --json only; give that, too"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunGenerate(Console& console, const GenerateFlags& flags) {
  ASSIGN_OR_RETURN(Json given, flags.request.Given());
  RETURN_IF_ERROR(CheckEffect(flags, given));
  if (!flags.prompt.empty()) given["text"] = flags.prompt;
  const bool many = !flags.lines.input.empty();
  const absl::StatusOr<GenerateRequest> request = many ? GenerateRequest() : BuildRequest<GenerateRequest>(given);
  if (!request.ok()) {
    return BadInput(absl::StrCat(request.status().message(),
                                 "\n  give --text=TEXT, --token_ids=IDS, --messages=JSON or --input=FILE"));
  }
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  if (!many) return RunOne(console, flags, client.get(), *request);
  const AskFn<GenerateRequest> ask = [&client](const GenerateRequest& one, Json* json) {
    GenerateAnswer answer(NumChoices(one));
    absl::Status status = CollectAnswer(client.get(), one, &answer);
    if (status.ok() || !answer.empty()) *json = answer.ToJson();
    return status;
  };
  bool has_text = true;
  if (!flags.lines.json) {  // with --json the answer does not depend on it
    const absl::StatusOr<v1::GetModelInfoResponse> model = client->GetModelInfo();
    has_text = !model.ok() || model->has_tokenizer();
  }
  const auto as_text = [has_text](const Json& answer) { return AnswerText(answer, has_text); };
  return RunLines<GenerateRequest>(console, flags.lines, given, ask, as_text);
}

}  // namespace

void AddGenerateCommand(Command* app) {
  Command* command = app->AddCommand("generate", "generate text from a prompt, streamed as it comes");
  auto flags = std::make_shared<GenerateFlags>();
  command->flags()->BeginGroup("Prompt");
  command->flags()->AddPositional("prompt", &flags->prompt, "the prompt as text, the same as --text");
  flags->request.AddTo(command->flags());
  flags->lines.AddTo(command->flags());
  flags->server.AddTo(command->flags());
  command->SetFooter(
      "Examples:\n"
      "  switchyard generate \"The sea is\" --max_tokens=64 --temperature=0\n"
      "  switchyard generate --messages='[{\"role\": \"user\", \"content\": \"Hi\"}]' --seed=7\n"
      "  switchyard generate --input=requests.jsonl --json --concurrency=8 > answers.jsonl\n"
      "The text goes to standard output, a summary with tokens/s to standard error.");
  command->SetRun([flags](Console& console) { return RunGenerate(console, *flags); });
}

}  // namespace switchyard::cli
