#include "clients/cli/commands/train_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "clients/cli/command.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"
#include "clients/cpp/client_error.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"
#include "proto/support/errors.h"
#include "scheduler/base/text/utf8.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::cli {
namespace {

constexpr absl::Duration kAskAgainAfter = absl::Milliseconds(200);
constexpr char kOverwrite[] = "\r\x1b[K";
constexpr char kCut[] = "\x1b[?7l", kWrap[] = "\x1b[?7h";  // what a terminal does with a line that is too long

absl::Status ErrorOf(const v1::Job& job) {
  const google::rpc::Status& error = job.error();
  return client::FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(error.code()), error.message(),
                                             error.details_size() > 0 ? error.SerializeAsString() : std::string()),
                                "");
}

// Prints the job's changes.
class Screen {
 public:
  Screen(Console& console, bool json) : console_(console), json_(json) {}

  void Show(const v1::Job& job) {
    if (json_) {
      console_.out << Dump(ToJson(job)) << std::endl;
      return;
    }
    const std::string line = ProgressLine(job);
    // Lines of states stay on the screen; lines of steps are overwritten, so they must have one row.
    if (console_.live) {
      console_.out << (std::exchange(state_, job.state()) == job.state() ? kOverwrite : open_ ? "\n" : "");
      const bool cut = job.state() == v1::JOB_STATE_RUNNING;
      console_.out << (cut ? kCut : "") << line << (cut ? kWrap : "") << std::flush;
      open_ = true;
    } else if (line != std::exchange(last_, line)) {
      console_.out << line << std::endl;
    }
  }
  void Report(absl::string_view text) {
    Close();
    console_.err << text << std::endl;
  }
  void Close() {
    if (std::exchange(open_, false)) console_.out << std::endl;
  }

 private:
  Console& console_;
  const bool json_;
  bool open_ = false;  // the last line may be overwritten
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string last_;
};

int Conclude(Console& console, const v1::Job& job, bool json) {
  if (job.state() == v1::JOB_STATE_FAILED) {
    console.err << "switchyard: job " << job.id() << " failed: " << client::Explain(ErrorOf(job)) << std::endl;
    return kExitFailed;
  }
  if (job.state() != v1::JOB_STATE_SUCCEEDED) {
    console.err << "switchyard: job " << job.id() << " was cancelled" << std::endl;
    return kExitFailed;
  }
  if (!json) {
    console.out << "job " << job.id() << " succeeded after " << job.progress().step() << " steps"
                << (job.has_checkpoint() ? absl::StrCat("; its checkpoint: ", job.checkpoint().folder()) : "")
                << std::endl;
  }
  return kExitOk;
}

// "3.3010", and where there are several sets " (code 2.9120, chat 3.6100, 2 more)".
std::string EvaluationText(const v1::EvaluationResult& evaluation) {
  constexpr int kMostSets = 4;
  constexpr size_t kMostNameBytes = 24;
  std::string text = absl::StrFormat("%.4f", evaluation.loss());
  if (evaluation.sets_size() < 2) return text;
  const int shown = std::min(evaluation.sets_size(), kMostSets);
  for (int i = 0; i < shown; ++i) {
    const v1::SetResult& set = evaluation.sets(i);
    absl::StrAppendFormat(&text, "%s%s %.4f", i == 0 ? " (" : ", ", CutText(set.name(), kMostNameBytes), set.loss());
  }
  if (shown < evaluation.sets_size()) absl::StrAppend(&text, ", ", evaluation.sets_size() - shown, " more");
  return text + ")";
}

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

void PrintEvaluation(std::ostream& out, const char* title, const v1::EvaluationResult& evaluation) {
  const auto print = [&](absl::string_view name, const auto& result) {
    if (!result.has_preferences()) {
      out << absl::StreamFormat("%s: loss %.4f, perplexity %.4g over %d tokens\n", name, result.loss(),
                                std::exp(result.loss()), result.tokens());
      return;
    }
    const v1::PreferenceFigures& pairs = result.preferences();
    out << absl::StreamFormat("%s: loss %.4f, margin %.4f, accuracy %.3f over %d pairs\n", name, result.loss(),
                              pairs.margin(), pairs.accuracy(), pairs.pairs());
  };
  out << absl::StreamFormat("%-11s ", title);
  print(absl::StrCat("step ", evaluation.step()), evaluation);
  if (evaluation.sets_size() < 2) return;
  for (const v1::SetResult& set : evaluation.sets()) {
    out << std::string(14, ' ');
    print(set.name(), set);
  }
}

}  // namespace

std::string StateName(v1::JobState state) { return absl::AsciiStrToUpper(EnumName(v1::JobState_descriptor(), state)); }

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

int64_t TotalSteps(const v1::Job& job) {
  return job.spec().steps() > 0 ? job.spec().steps() : job.progress().total_steps();
}

std::string ProgressLine(const v1::Job& job) {
  std::string line;
  if (job.state() != v1::JOB_STATE_RUNNING || !job.has_progress()) {
    line = StateName(job.state());
    if (job.prepare_bytes() > 0 && job.state() == v1::JOB_STATE_PREPARING) {
      absl::StrAppendFormat(&line, " | %.1f of %.1f MB of text", 1e-6 * static_cast<double>(job.prepared_bytes()),
                            1e-6 * static_cast<double>(job.prepare_bytes()));
    }
  }
  if (job.has_progress()) {
    const v1::TrainProgress& progress = job.progress();
    absl::StrAppendFormat(&line, "%sstep %d/%d | ", line.empty() ? "" : " | ", progress.step(), TotalSteps(job));
    if (progress.skipped()) {
      absl::StrAppend(&line, "skipped");
    } else {
      absl::StrAppendFormat(&line, "loss %.4f", progress.loss());
    }
    if (progress.has_preferences() && !progress.skipped()) {
      absl::StrAppendFormat(&line, " | margin %.4f | accuracy %.3f", progress.preferences().margin(),
                            progress.preferences().accuracy());
    }
    if (job.has_evaluation()) absl::StrAppend(&line, " | eval ", EvaluationText(job.evaluation()));
    if (!progress.skipped()) absl::StrAppendFormat(&line, " | norm %.2f", progress.gradient_norm());
    absl::StrAppendFormat(&line, " | lr %.2e | %.0f tok/s", progress.learning_rate(), progress.tokens_per_second());
    if (progress.packing() > 1) absl::StrAppend(&line, " | packing ", progress.packing());
    if (progress.padding() >= 0.0005) absl::StrAppendFormat(&line, " | %.1f%% padding", 100 * progress.padding());
    if (progress.chunks() > 1) absl::StrAppend(&line, " | ", progress.chunks(), " chunks");
    if (progress.dropped_rows() > 0) absl::StrAppend(&line, " | ", progress.dropped_rows(), " dropped");
  }
  if (job.seconds_left() > 0) {
    const absl::Duration left = absl::Ceil(absl::Seconds(job.seconds_left()), absl::Seconds(1));
    absl::StrAppend(&line, " | ", absl::FormatDuration(left), " left");
  }
  if (!job.note().empty()) absl::StrAppend(&line, " | ", job.note());
  if (job.state() == v1::JOB_STATE_PAUSED && job.has_error())
    absl::StrAppend(&line, " | ", client::Explain(ErrorOf(job)));
  return line;
}

void PrintJob(std::ostream& out, const v1::Job& job) {
  out << "job         " << job.id() << ": " << ProgressLine(job) << "\n";
  if (job.has_origin()) {
    out << "fork of     " << job.origin().job() << " at step " << job.origin().step()
        << (job.origin().other_data() ? ", with its data from their beginning" : "") << "\n";
  }
  if (job.has_error()) out << "error       " << Dump(ToJson(job.error())) << "\n";
  if (job.has_checkpoint()) {
    out << absl::StreamFormat("checkpoint  %s (step %d, %d bytes)\n", job.checkpoint().folder(),
                              job.checkpoint().step(), job.checkpoint().bytes());
  }
  if (job.has_evaluation()) PrintEvaluation(out, "evaluation", job.evaluation());
  if (job.has_best_evaluation() && job.best_evaluation().step() != job.evaluation().step()) {
    PrintEvaluation(out, "best", job.best_evaluation());
  }
  if (job.has_best_checkpoint()) {
    out << absl::StreamFormat("best kept   %s (step %d)\n", job.best_checkpoint().folder(),
                              job.best_checkpoint().step());
  }
  out << "attempts    " << job.attempt() << "\n";
  for (const v1::StateChange& change : job.changes()) {
    out << TimeText(change.unix_ms()) << " UTC  " << StateName(change.state())
        << (change.reason().empty() ? "" : ": " + change.reason()) << "\n";
  }
  out << ToJson(job.spec()).dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
}

void PrintJobHeader(std::ostream& out) {
  out << absl::StreamFormat("%-24s %-10s %15s %9s %9s  %-19s  %s\n", "job", "state", "step", "loss", "eval",
                            "submitted (UTC)", "labels");
}

void PrintJobRow(std::ostream& out, const v1::Job& job) {
  std::vector<std::string> labels;
  for (const auto& [name, value] : job.spec().labels()) labels.push_back(absl::StrCat(name, "=", value));
  std::sort(labels.begin(), labels.end());
  const std::string step = absl::StrCat(job.progress().step(), "/", TotalSteps(job));
  const bool has_loss = job.has_progress() && !job.progress().skipped();
  const std::string loss = has_loss ? absl::StrFormat("%.4f", job.progress().loss()) : "";
  const std::string evaluated = job.has_evaluation() ? absl::StrFormat("%.4f", job.evaluation().loss()) : "";
  out << absl::StreamFormat("%-24s %-10s %15s %9s %9s  %s  %s\n", job.id(), StateName(job.state()), step, loss,
                            evaluated, TimeText(job.created_unix_ms()), absl::StrJoin(labels, " "));
}

int Watch(Console& console, client::Client& client, const WatchOptions& options) {
  v1::WatchJobRequest request;
  request.set_id(options.id);
  request.set_min_interval_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(options.interval)));
  Screen screen(console, options.json);
  v1::Job last;
  absl::Time last_answer = absl::Now();
  bool gone = false;  // the server does not answer, and a line has said so
  for (;;) {
    const absl::Status status = client.WatchJob(request, [&](const v1::Job& job) {
      last_answer = absl::Now();
      gone = false;
      screen.Show(job);
      last = job;
    });
    if (status.ok() && IsFinal(last.state())) break;
    if (absl::IsDeadlineExceeded(status)) {  // streams have a time limit; the server did answer
      last_answer = absl::Now();
      continue;
    }
    // A killed server continues its jobs when it is started again.
    const bool again = status.ok() || absl::IsUnavailable(status);
    if (!again || absl::Now() - last_answer > options.patience) {
      screen.Close();
      return Complain(console,
                      status.ok() ? absl::UnavailableError("the server does not say how the job ends") : status);
    }
    if (absl::IsUnavailable(status) && !std::exchange(gone, true)) screen.Report("[the server is away; asking again]");
    absl::SleepFor(kAskAgainAfter);
  }
  screen.Close();
  return Conclude(console, last, options.json);
}

}  // namespace switchyard::cli
