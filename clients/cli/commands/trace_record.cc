#include "clients/cli/commands/trace_record.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "clients/cli/generate_answer.h"
#include "clients/cli/json.h"
#include "clients/cli/request_lines.h"
#include "clients/cli/whole_file.h"
#include "clients/cpp/client.h"
#include "proto/support/trace_writer.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using v1::GenerateRequest;

// Fields that only affect generated tokens after the first, which is not routed itself.
constexpr const char* kOfGeneration[] = {"min_tokens",         "temperature",       "top_p",      "top_k", "min_p",
                                         "presence_penalty",   "frequency_penalty", "logit_bias", "seed",  "stop",
                                         "repetition_penalty", "stop_token_ids",    "ignore_eos"};
constexpr char kGenerationGroup[] = "With --max_tokens above 1";

// One line of the input.
struct Document {
  GenerateRequest request;
  std::string label;
};

absl::StatusOr<Document> ParseDocument(const std::string& line, const Json& defaults, const std::string& label) {
  ASSIGN_OR_RETURN(Json object, ParseLine(line));
  Document document = {.request = {}, .label = label};
  if (const auto own = object.find("label"); own != object.end()) {
    if (!own->is_string()) return absl::InvalidArgumentError("label must be a text");
    document.label = own->get<std::string>();
    object.erase("label");
  }
  ASSIGN_OR_RETURN(document.request, RequestFrom<GenerateRequest>(object, defaults));
  if (document.request.has_n() && document.request.n() != 1) return absl::InvalidArgumentError("n must be 1");
  // By default a document is all prompt; a request must generate at least one token.
  document.request.set_max_tokens(std::max(document.request.max_tokens(), 1));
  document.request.set_return_expert_paths(true);
  document.request.clear_request_id();  // each of its windows is a request of its own
  return document;
}

class Recorder {
 public:
  Recorder(const RecordFlags& flags, client::Client* client, v1::GetModelInfoResponse model, Console* console)
      : flags_(flags), client_(client), model_(std::move(model)), console_(console) {}

  // Returns the document's sequences in the file's format.
  absl::StatusOr<std::string> Record(const Document& document) {
    std::vector<int32_t> tokens;
    RETURN_IF_ERROR(TokensOf(document.request, &tokens));
    const int64_t room = int64_t{model_.max_model_len()} - document.request.max_tokens();
    const int64_t window = flags_.window > 0 ? std::min<int64_t>(flags_.window, room) : room;
    if (window < 1) {
      return BadInput(absl::StrCat("max_tokens ", document.request.max_tokens(), " leaves no room for a prompt in ",
                                   model_.max_model_len(), " tokens"));
    }
    if (tokens.empty()) return BadInput("the document has no tokens");
    std::string bytes;
    int64_t num_sequences = 0;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(window), ++num_sequences) {
      const auto part = absl::MakeConstSpan(tokens).subspan(begin, static_cast<size_t>(window));
      GenerateRequest request = document.request;
      request.mutable_token_ids()->mutable_ids()->Assign(part.begin(), part.end());
      ASSIGN_OR_RETURN(const std::string sequence, RecordOne(request, document.label));
      bytes += sequence;
    }
    Report(num_sequences, static_cast<int64_t>(tokens.size()));
    return bytes;
  }

  void Complain(int line_number, const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    console_->err << "switchyard: line " << line_number << ": " << client::Explain(status) << std::endl;
  }

  std::string Summary() {
    absl::MutexLock lock(&mu_);
    return absl::StrCat(num_documents_, " documents, ", num_sequences_, " sequences, ", num_tokens_, " tokens");
  }

 private:
  absl::Status TokensOf(const GenerateRequest& request, std::vector<int32_t>* tokens) {
    if (request.has_token_ids()) {
      tokens->assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
      return absl::OkStatus();
    }
    v1::TokenizeRequest tokenize;
    tokenize.set_model(request.model());
    if (request.has_messages()) {
      *tokenize.mutable_messages() = request.messages();
    } else {
      tokenize.set_text(request.text());
    }
    if (request.has_allow_special()) tokenize.set_allow_special(request.allow_special());
    if (request.has_add_special_tokens()) tokenize.set_add_special_tokens(request.add_special_tokens());
    ASSIGN_OR_RETURN(const v1::TokenizeResponse response, client_->Tokenize(tokenize));
    tokens->assign(response.token_ids().begin(), response.token_ids().end());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> RecordOne(const GenerateRequest& request, const std::string& label) {
    GenerateAnswer answer(1);
    const AskFn<GenerateRequest> ask = [&](const GenerateRequest& one, Json*) {
      answer = GenerateAnswer(1);
      return CollectAnswer(client_, one, &answer);
    };
    Json unused;
    RETURN_IF_ERROR(AskPatiently(ask, request, &unused));
    std::vector<int32_t> tokens(request.token_ids().ids().begin(), request.token_ids().ids().end());
    const auto num_prompt = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), answer.token_ids(0).begin(), answer.token_ids(0).end());
    return rpc::TraceOf(
        model_, {.label = label, .num_prompt = num_prompt, .token_ids = tokens, .paths = &answer.expert_paths(0)});
  }

  void Report(int64_t num_sequences, int64_t num_tokens) {
    absl::MutexLock lock(&mu_);
    ++num_documents_;
    num_sequences_ += num_sequences;
    num_tokens_ += num_tokens;
    const absl::Time now = absl::Now();
    if (now - reported_ < absl::Seconds(2)) return;
    reported_ = now;
    console_->err << "[" << num_documents_ << " documents, " << num_tokens_ << " tokens]" << std::endl;
  }

  const RecordFlags& flags_;
  client::Client* const client_;
  const v1::GetModelInfoResponse model_;
  absl::Mutex mu_;
  Console* const console_;  // console_->err is guarded by mu_
  int64_t num_documents_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_sequences_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time reported_ ABSL_GUARDED_BY(mu_) = absl::Now();
};

// Records every document of `in`, in order, after the header in `out`; returns how many failed.
int RecordAll(const RecordFlags& flags, const Json& defaults, std::istream& in, std::ostream& out, Recorder* recorder) {
  return AnswerLines(
      in, out, flags.concurrency,
      [&](int line_number, const std::string& line) {
        const absl::StatusOr<Document> document = ParseDocument(line, defaults, flags.label);
        absl::StatusOr<std::string> bytes =
            document.ok() ? recorder->Record(*document) : BadInput(document.status().message());
        if (bytes.ok()) return LineAnswer{*std::move(bytes), true};
        recorder->Complain(line_number, bytes.status());
        return LineAnswer{"", false};
      },
      /*end_of_answer=*/"");
}

}  // namespace

void AddDocumentFlags(absl::string_view input, RecordFlags* values, FlagSet* flags) {
  flags->BeginGroup("Documents");
  flags->Add(
      absl::StrCat(input, "=FILE"), &values->input,
      "documents: a file of JSON lines whose keys are the flags' names and \"label\", - for standard input; flags "
      "are defaults of the lines");
  flags->Add("label", &values->label, "label of the text's origin, stored with each sequence");
  flags
      ->Add("window", &values->window,
            "longer documents are cut into sequences of this many tokens (default and maximum: the context)")
      .Range(0, std::numeric_limits<int>::max())
      .NoDefault();
  flags->Add("concurrency", &values->concurrency, "documents under way at once").Range(1, 1024);
  values->request.AddTo(
      flags, {"n", "request_id", "return_expert_paths", "logprobs", "prompt_logprobs", "skip_special_tokens"});
  flags->BeginGroup(kGenerationGroup);
  for (const char* name : kOfGeneration) flags->Regroup(name);
  values->server.AddTo(flags);
}

absl::StatusOr<int> RecordTrace(Console& console, const RecordFlags& flags) {
  ASSIGN_OR_RETURN(Json given, flags.request.Given());
  const bool one = flags.input.empty();
  if (one && !given.contains("text") && !given.contains("token_ids") && !given.contains("messages")) {
    return BadInput("give --input=FILE, --text=TEXT or --token_ids=IDS");
  }
  // In a file each line may set max_tokens.
  const bool generates = !one || (given.contains("max_tokens") && given["max_tokens"] != 1);
  for (const char* name : kOfGeneration) {
    if (generates || !given.contains(name)) continue;
    return BadInput(absl::StrCat("--", name, " has no effect on a document: it goes with --max_tokens above 1"));
  }
  std::shared_ptr<std::istream> in = std::make_shared<std::istringstream>("{}");  // the flags describe the document
  if (!one) {
    ASSIGN_OR_RETURN(in, OpenInput(console, flags.input));
  }
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse model, client->GetModelInfo());
  ASSIGN_OR_RETURN(const std::string beginning, rpc::TraceBeginning(model));
  std::ofstream out(flags.output, std::ios::binary | std::ios::trunc);
  out << beginning;
  if (!out.flush()) return BadInput(absl::StrCat("--output=", flags.output, ": ", strerror(errno)));
  Recorder recorder(flags, client.get(), model, &console);
  const int failed = RecordAll(flags, given, *in, out, &recorder);
  if (!out.flush()) {
    return absl::DataLossError(absl::StrCat("--output=", flags.output, ": ", strerror(errno)));
  }
  console.err << "[" << recorder.Summary() << "]" << std::endl;
  if (failed == 0) return kExitOk;
  console.err << "switchyard: " << failed << (failed == 1 ? " document" : " documents") << " failed" << std::endl;
  return kExitFailed;
}

absl::StatusOr<popularity::RoutingTrace> ReadTrace(Console& console, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  absl::Status torn;
  absl::StatusOr<popularity::RoutingTrace> trace = popularity::ParseTrace(bytes, &torn);
  if (!trace.ok()) return RefuseFile(path, trace.status().message());
  if (!torn.ok()) {
    console.err << "[" << path << ": " << torn.message() << "; taking the " << trace->sequences.size()
                << " sequences before it]" << std::endl;
  }
  return trace;
}

}  // namespace switchyard::cli
