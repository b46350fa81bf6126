// switchyard train: jobs that train models, submitted, watched, paused, cancelled.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "clients/cli/command.h"
#include "clients/cli/commands/job_flags.h"
#include "clients/cli/commands/train_watch.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/whole_file.h"
#include "google/rpc/status.pb.h"

namespace switchyard {
namespace {

constexpr size_t kMaxSpecBytes = 1 << 20;

// What every command about one job has.
struct JobFlags {
  ServerFlags server;
  std::string id;
  double interval_seconds = 1;
  bool json = false;
};

struct SubmitFlags {
  JobFlags job;
  RequestFlags<v1::JobSpec> fields;
  std::string spec;
  std::string request_id;
  bool watch = false;
};

struct ListFlags {
  ServerFlags server;
  std::vector<std::string> states, labels;
  int page_size = 100;
  std::string page_token;
  bool all = false;
  bool json = false;
};

absl::StatusOr<v1::SubmitJobRequest> BuildSubmit(const SubmitFlags& flags) {
  v1::SubmitJobRequest request;
  request.set_request_id(flags.request_id);
  if (!flags.spec.empty()) {
    const absl::StatusOr<std::string> text = ReadWhole(flags.spec, kMaxSpecBytes);
    if (!text.ok()) return text.status();
    const absl::StatusOr<Json> object = ParseJson(*text);
    const absl::Status status = object.ok() ? MergeJson(*object, request.mutable_spec()) : object.status();
    if (!status.ok()) return RefuseFile(flags.spec, status.message());
  }
  const absl::StatusOr<Json> given = flags.fields.Given();
  if (!given.ok()) return BadInput(given.status().message());
  for (const auto& [name, value] : given->items()) {
    const auto field = FindField<v1::JobSpec>(RequestFields<v1::JobSpec>(), name);
    const absl::Status status = field.ok() ? (*field)->set(value, request.mutable_spec()) : field.status();
    if (!status.ok()) return BadInput(absl::StrCat("--", name, " ", status.message()));
  }
  return request;
}

int Follow(Console& console, Client& client, const JobFlags& flags) {
  return Watch(console, client,
               {.id = flags.id,
                .json = flags.json,
                .interval = absl::Seconds(flags.interval_seconds),
                .patience = absl::Seconds(flags.server.timeout_seconds)});
}

int Submit(Console& console, SubmitFlags& flags) {
  const absl::StatusOr<v1::SubmitJobRequest> request = BuildSubmit(flags);
  if (!request.ok()) return Complain(console, request.status());
  const auto client = flags.job.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  const absl::StatusOr<v1::SubmitJobResponse> answer = (*client)->SubmitJob(*request);
  if (!answer.ok()) return Complain(console, answer.status());
  console.out << (flags.job.json ? Dump(ToJson(*answer)) : answer->job().id()) << std::endl;
  if (answer->existed() && !flags.job.json) console.err << "[it had been submitted before]" << std::endl;
  if (!flags.watch) return kExitOk;
  flags.job.id = answer->job().id();
  return Follow(console, **client, flags.job);
}

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

void PrintJob(std::ostream& out, const v1::Job& job) {
  out << "job         " << job.id() << ": " << ProgressLine(job) << "\n";
  if (job.has_error()) {
    out << "error       " << Dump(ToJson(job.error())) << "\n";
  }
  if (job.has_checkpoint()) {
    out << absl::StreamFormat("checkpoint  %s (step %d, %d bytes)\n", job.checkpoint().folder(),
                              job.checkpoint().step(), job.checkpoint().bytes());
  }
  if (job.has_evaluation()) {
    out << absl::StreamFormat("evaluation  step %d: loss %.4f over %d tokens\n", job.evaluation().step(),
                              job.evaluation().loss(), job.evaluation().tokens());
  }
  out << "attempts    " << job.attempt() << "\n";
  for (const v1::StateChange& change : job.changes()) {
    out << TimeText(change.unix_ms()) << " UTC  " << StateName(change.state())
        << (change.reason().empty() ? "" : ": " + change.reason()) << "\n";
  }
  out << ToJson(job.spec()).dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
}

// What became of a job by a call about it.
void PrintState(std::ostream& out, const v1::Job& job) {
  out << job.id() << " " << StateName(job.state()) << std::endl;
}

using JobCall = absl::StatusOr<v1::Job> (Client::*)(const std::string& id);
using PrintFn = void (*)(std::ostream& out, const v1::Job& job);

int Show(Console& console, const JobFlags& flags, const absl::StatusOr<v1::Job>& job, PrintFn print) {
  if (!job.ok()) return Complain(console, job.status());
  if (flags.json) {
    console.out << Dump(ToJson(*job)) << std::endl;
  } else {
    print(console.out, *job);
  }
  return kExitOk;
}

int Ask(Console& console, const JobFlags& flags, JobCall call) {
  const auto client = flags.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  return Show(console, flags, ((**client).*call)(flags.id), call == &Client::GetJob ? PrintJob : PrintState);
}

int Resume(Console& console, const JobFlags& flags, std::optional<int32_t> workers) {
  const auto client = flags.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  v1::ResumeJobRequest request;
  request.set_id(flags.id);
  if (workers.has_value()) request.set_workers(*workers);
  return Show(console, flags, (*client)->ResumeJob(request), PrintState);
}

int WatchOne(Console& console, const JobFlags& flags) {
  const auto client = flags.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  return Follow(console, **client, flags);
}

void PrintRow(std::ostream& out, const v1::Job& job) {
  std::vector<std::string> labels;
  for (const auto& [name, value] : job.spec().labels()) labels.push_back(absl::StrCat(name, "=", value));
  std::sort(labels.begin(), labels.end());
  const std::string step = absl::StrCat(job.progress().step(), "/", job.spec().steps());
  const bool has_loss = job.has_progress() && !job.progress().skipped();
  const std::string loss = has_loss ? absl::StrFormat("%.4f", job.progress().loss()) : "";
  out << absl::StreamFormat("%-24s %-10s %15s %9s  %s  %s\n", job.id(), StateName(job.state()), step, loss,
                            TimeText(job.created_unix_ms()), absl::StrJoin(labels, " "));
}

int List(Console& console, const ListFlags& flags) {
  v1::ListJobsRequest request;
  const absl::Status status = MergeJson({{"labels", flags.labels}}, &request);
  if (!status.ok()) return Complain(console, BadInput(absl::StrCat("--label: ", status.message())));
  for (const std::string& name : flags.states) {
    v1::StateChange named;  // reads the name of a state
    const absl::Status known = MergeField("state", name, &named);
    if (!known.ok()) return Complain(console, BadInput(absl::StrCat("--state ", known.message())));
    request.add_states(named.state());
  }
  request.set_page_size(flags.page_size);
  request.set_page_token(flags.page_token);
  const auto client = flags.server.Connect();
  if (!client.ok()) return Complain(console, client.status());
  bool header = !flags.json;
  do {
    const absl::StatusOr<v1::ListJobsResponse> page = (*client)->ListJobs(request);
    if (!page.ok()) return Complain(console, page.status());
    if (std::exchange(header, false)) {
      console.out << absl::StreamFormat("%-24s %-10s %15s %9s  %-19s  %s\n", "job", "state", "step", "loss",
                                        "submitted (UTC)", "labels");
    }
    for (const v1::Job& job : page->jobs()) {
      if (flags.json) {
        console.out << Dump(ToJson(job)) << "\n";
      } else {
        PrintRow(console.out, job);
      }
    }
    request.set_page_token(page->next_page_token());
  } while (flags.all && !request.page_token().empty());
  console.out.flush();
  if (!request.page_token().empty()) {
    console.err << "[there are more: --page_token=" << request.page_token() << ", or --all]" << std::endl;
  }
  return kExitOk;
}

std::shared_ptr<JobFlags> AddJobFlags(CLI::App* command, bool watches) {
  auto flags = std::make_shared<JobFlags>();
  flags->server.AddTo(command);
  command->add_option("id", flags->id, "the job")->required()->type_name("JOB");
  if (watches) {
    command->add_option("--interval", flags->interval_seconds, "seconds from one line to the next, at least")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 86400.0))
        ->capture_default_str();
  }
  command->add_flag("--json", flags->json, watches ? "a line of JSON for each change" : "one line of JSON");
  return flags;
}

void AddSubmit(CLI::App* train, RunCommand* run) {
  CLI::App* command = train->add_subcommand("submit", "submit a job; prints its id");
  auto flags = std::make_shared<SubmitFlags>();
  flags->job.server.AddTo(command);
  command
      ->add_option("--spec", flags->spec,
                   "a file with the job as JSON, as `train get --json` shows it under \"spec\"; flags win over it")
      ->type_name("FILE");
  flags->fields.AddTo(command);
  command
      ->add_option("--request_id", flags->request_id,
                   "the same id with the same job submits it once, however often it is asked for")
      ->type_name("TEXT");
  command->add_flag("--watch", flags->watch, "follow it until it is over");
  command->add_option("--interval", flags->job.interval_seconds, "with --watch: seconds between lines, at least")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_flag("--json", flags->job.json, "one line of JSON instead of the id");
  command->footer(
      "Examples:\n"
      "  switchyard train submit --architecture=demo --dataset=train.jsonl --evaluation=heldout.jsonl \\\n"
      "      --steps=2000 --sequence_length=256 --batch_sequences=16 --learning_rate=1e-3 --watch\n"
      "  switchyard train submit --spec=job.json --steps=100 --label=try=2\n"
      "Files are the server's, beneath its dataset and checkpoint roots. All that is wrong with a job is told at "
      "once.");
  command->callback([flags, run] { *run = [flags](Console& console) { return Submit(console, *flags); }; });
}

void AddList(CLI::App* train, RunCommand* run) {
  CLI::App* command = train->add_subcommand("list", "the jobs, newest first");
  auto flags = std::make_shared<ListFlags>();
  flags->server.AddTo(command);
  command->add_option("--state", flags->states, "only those in this state; may be given again")
      ->type_name("STATE")
      ->allow_extra_args(false);
  command->add_option("--label", flags->labels, "only those with this label; may be given again")
      ->type_name("KEY=TEXT")
      ->allow_extra_args(false);
  command->add_option("--page_size", flags->page_size, "jobs of a page")
      ->type_name("NUMBER")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--page_token", flags->page_token, "the page that this token, of the page before, begins")
      ->type_name("TOKEN");
  command->add_flag("--all", flags->all, "all pages");
  command->add_flag("--json", flags->json, "a line of JSON for each job");
  command->callback([flags, run] { *run = [flags](Console& console) { return List(console, *flags); }; });
}

void AddCall(CLI::App* train, RunCommand* run, const char* name, const char* help, JobCall call) {
  CLI::App* command = train->add_subcommand(name, help);
  const std::shared_ptr<JobFlags> flags = AddJobFlags(command, /*watches=*/false);
  command->callback(
      [flags, run, call] { *run = [flags, call](Console& console) { return Ask(console, *flags, call); }; });
}

void AddResume(CLI::App* train, RunCommand* run) {
  CLI::App* command = train->add_subcommand("resume", "let a paused job go on");
  const std::shared_ptr<JobFlags> flags = AddJobFlags(command, /*watches=*/false);
  auto workers = std::make_shared<std::optional<int32_t>>();
  command->add_option("--workers", *workers, "on so many from now on; without: on as many as before")
      ->type_name("NUMBER");
  command->footer(
      "On another number of workers a job's results are right, but no longer those of an undisturbed run "
      "to the bit.");
  command->callback(
      [flags, workers, run] { *run = [=](Console& console) { return Resume(console, *flags, *workers); }; });
}

}  // namespace

void AddTrainCommand(CLI::App* app, RunCommand* run) {
  CLI::App* command =
      app->add_subcommand("train", "jobs that train models: submit, list, get, watch, pause, resume, cancel");
  command->require_subcommand(1);
  AddSubmit(command, run);
  AddList(command, run);
  AddCall(command, run, "get", "all about one job", &Client::GetJob);
  CLI::App* watch = command->add_subcommand("watch", "follow a job until it is over");
  const std::shared_ptr<JobFlags> flags = AddJobFlags(watch, /*watches=*/true);
  watch->footer(
      "Exit code 0 when the job has succeeded, 1 when it failed or was cancelled. Ctrl-C ends the watching, not the "
      "job.\n"
      "A server that is away is asked again for --timeout seconds.");
  watch->callback([flags, run] { *run = [flags](Console& console) { return WatchOne(console, *flags); }; });
  AddCall(command, run, "pause", "stop a job at a step, with a checkpoint", &Client::PauseJob);
  AddResume(command, run);
  AddCall(command, run, "cancel", "end a job; a running one saves a checkpoint first", &Client::CancelJob);
}

}  // namespace switchyard
