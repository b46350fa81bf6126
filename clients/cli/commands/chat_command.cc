// switchyard chat: a conversation in the terminal, or with a script that writes lines.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/generate_answer.h"
#include "clients/cli/interrupts.h"
#include "clients/cli/json.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/terminal/line_editor.h"
#include "clients/cli/terminal/line_history.h"
#include "clients/cpp/client.h"
#include "clients/cpp/client_error.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using v1::GenerateRequest;
using v1::GenerateResponse;

constexpr char kHelp[] =
    "  /help   this text\n"
    "  /reset  forget the conversation\n"
    "  /exit   leave (so does Ctrl-D)\n"
    "Ctrl-C stops the answer that is being written; everything else is said to the model.\n"
    "On a terminal arrow-up and Ctrl-R recall what was typed, also in earlier conversations\n"
    "(--history), Alt-Enter begins a new line, and what is pasted is said as a whole.\n";
constexpr char kPrompt[] = "you> ";
constexpr char kHowToLeave[] = "(/exit or Ctrl-D leaves)";
constexpr absl::string_view kNoHistory = "none";

struct ChatFlags {
  ServerFlags server;
  RequestFlags<GenerateRequest> request;
  std::string system;
  std::string history = LineHistory::DefaultPath();
};

// What a person types: lines of the terminal, with editing and a history if it can do that, else of the input.
class ChatInput {
 public:
  ChatInput(Console* console, const std::string& history_path) : console_(*console) {
    if (!console_.interactive || !console_.live) return;
    editor_ = LineEditor::Open(STDIN_FILENO, STDOUT_FILENO, kPrompt);
    if (editor_ == nullptr || history_path.empty() || history_path == kNoHistory) return;
    absl::StatusOr<std::unique_ptr<LineHistory>> history = LineHistory::Open(history_path);
    if (history.ok()) {
      history_ = *std::move(history);
      for (const std::string& line : history_->lines()) editor_->Remember(line);
    } else {
      WithoutHistory(history.status());
    }
  }

  // Asks for a line and waits for it.  False: there is none any more.
  bool Next(std::string* line) {
    if (editor_ == nullptr) {
      if (console_.interactive) console_.err << kPrompt << std::flush;
      return static_cast<bool>(std::getline(console_.in, *line));
    }
    for (;;) {
      LineEditor::Line read = editor_->Read();
      if (read.end == LineEditor::Line::End::kEntered) {
        *line = std::move(read.text);
        Keep(*line);
        return true;
      }
      console_.err << std::endl;
      if (read.end == LineEditor::Line::End::kClosed) return false;
      console_.err << kHowToLeave << std::endl;
    }
  }

  // Ctrl-C while Next waits.  On any thread.
  void Interrupt() {
    if (editor_ != nullptr) return editor_->Interrupt();
    console_.err << "\n" << kHowToLeave << "\n" << std::flush;
  }

 private:
  void Keep(const std::string& line) {
    if (absl::StripAsciiWhitespace(line).empty()) return;
    editor_->Remember(line);
    if (history_ == nullptr) return;
    if (const absl::Status added = history_->Add(line); !added.ok()) WithoutHistory(added);
  }
  void WithoutHistory(const absl::Status& why) {
    console_.err << "no history is kept: " << why.message() << " (--history=FILE or none)" << std::endl;
    history_ = nullptr;
  }

  Console& console_;
  std::unique_ptr<LineEditor> editor_;    // null: plain lines
  std::unique_ptr<LineHistory> history_;  // null: none is kept
};

class Chat {
 public:
  Chat(Console* console, ChatInput* input, client::Client* client, Interrupts* interrupts, GenerateRequest base)
      : console_(*console),
        input_(input),
        client_(client),
        interrupts_(interrupts),
        base_(std::move(base)),
        history_(base_.messages()) {
    HandleAtPrompt();
  }
  ~Chat() { interrupts_->Handle(nullptr); }

  int Run() {
    if (console_.interactive) console_.err << "/help lists the commands" << std::endl;
    std::string line;
    while (input_->Next(&line)) {
      const absl::string_view said = absl::StripAsciiWhitespace(line);
      if (said.empty()) continue;
      if (said == "/exit" || said == "/quit") break;
      if (said == "/help") {
        console_.err << kHelp << std::flush;
      } else if (said == "/reset") {
        history_ = base_.messages();
        console_.err << "(forgotten)" << std::endl;
      } else if (said[0] == '/' && console_.interactive) {  // (From a pipe it goes to the model.)
        console_.err << "unknown command " << said << "; /help lists them" << std::endl;
      } else {
        Answer(line);
      }
    }
    return failed_ ? kExitFailed : kExitOk;
  }

 private:
  void HandleAtPrompt() {
    interrupts_->Handle([input = input_] { input->Interrupt(); });
  }

  // Answers a turn.  A failed turn is removed, so that the next one starts from a valid history.
  void Answer(const std::string& said) {
    GenerateRequest request = base_;
    *request.mutable_messages() = history_;
    v1::ChatMessage* message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(said);
    GenerateAnswer answer(1);
    absl::Status fault;
    bool early = false;  // an interrupt came before there was a call to cancel
    interrupts_->Handle([&early] { early = true; });
    auto stream = client_->StartGenerate(request, {.on_message =
                                                       [this, &answer, &fault](const GenerateResponse& part) {
                                                         if (!fault.ok()) return;
                                                         fault = answer.Add(part);
                                                         console_.out << part.text() << std::flush;
                                                       },
                                                   .on_done = nullptr});
    interrupts_->Handle([&stream] { stream->Cancel(); });
    if (early) stream->Cancel();
    const absl::Status status = stream->Wait();
    HandleAtPrompt();
    console_.out << std::endl;
    const bool stopped = absl::IsCancelled(status);
    if (stopped) console_.err << "(stopped)" << std::endl;
    if (!stopped && !(status.ok() && fault.ok())) {
      failed_ = true;
      Complain(console_, status.ok() ? fault : status);
      return;
    }
    history_ = request.messages();
    v1::ChatMessage* reply = history_.add_messages();
    reply->set_role("assistant");
    reply->set_content(answer.text(0));
  }

  Console& console_;
  ChatInput* const input_;
  client::Client* const client_;
  Interrupts* const interrupts_;
  const GenerateRequest base_;
  v1::Messages history_;
  bool failed_ = false;
};

absl::StatusOr<int> RunChat(Console& console, const ChatFlags& flags) {
  ASSIGN_OR_RETURN(Json given, flags.request.Given());
  given["messages"] = Json::array();
  if (!flags.system.empty()) given["messages"].push_back({{"role", "system"}, {"content", flags.system}});
  ASSIGN_OR_RETURN(GenerateRequest base, BuildRequest<GenerateRequest>(given));
  Interrupts interrupts;
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse model, client->GetModelInfo());
  if (!model.has_chat_template()) {
    return client::ClientError(absl::StatusCode::kFailedPrecondition, "NO_CHAT_TEMPLATE",
                               absl::StrCat("the model ", model.model(), " has no chat template"));
  }
  ChatInput input(&console, flags.history);
  return Chat(&console, &input, client.get(), &interrupts, std::move(base)).Run();
}

}  // namespace

void AddChatCommand(Command* app) {
  Command* command = app->AddCommand("chat", "talk with the model; it sees the whole conversation");
  auto flags = std::make_shared<ChatFlags>();
  command->flags()->BeginGroup("Prompt");
  command->flags()->Add("system", &flags->system, "system message at the beginning of the conversation");
  flags->request.AddTo(command->flags(), {"text", "token_ids", "messages", "n", "logprobs", "prompt_logprobs",
                                          "return_expert_paths", "request_id", "add_generation_prompt"});
  command->flags()->BeginGroup("Prompt");
  command->flags()->Add("history=FILE", &flags->history,
                        "file that keeps what was typed at a terminal, for later conversations; none = keeps nothing");
  flags->server.AddTo(command->flags());
  command->SetFooter(absl::StrCat("In the conversation:\n", kHelp));
  command->SetRun([flags](Console& console) { return RunChat(console, *flags); });
}

}  // namespace switchyard::cli
