#include "server/jobs/api/training_subsystem.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/cores.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/fleet/adapter_list.h"
#include "server/engine/engine_loop.h"
#include "server/jobs/api/delete_job.h"
#include "server/jobs/fork/fork_folder.h"
#include "server/jobs/job_folder.h"
#include "server/jobs/journal/loss_log.h"
#include "server/jobs/pack/packer.h"
#include "server/server_flags.h"

namespace switchyard::server {
namespace {

constexpr char kJournal[] = "/jobs.sqlite";
constexpr absl::Duration kStopGrace = absl::Seconds(2);

// Whether the disk caused the error, rather than the flags of the server.
bool IsOfDisk(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsDataLoss(status) || absl::IsUnavailable(status);
}

// Sees to it that what is served stays if a job has made it.  Returns its folders beneath the root.
std::vector<std::string> KeepServed(const RootDir& checkpoints, const ServerConfig& config) {
  std::vector<std::string> paths = {config.model, config.adapter}, folders;
  const absl::StatusOr<std::vector<fleet::AdapterPlace>> adapters = fleet::ParseAdapterList(config.adapters);
  SY_CHECK_OK(adapters.status());  // ServerConfig::Finish has checked it
  for (const fleet::AdapterPlace& each : *adapters) paths.push_back(each.dir);
  for (const std::string& path : paths) {
    const std::string folder = path.empty() ? "" : FolderBeneath(checkpoints, path);
    if (folder.empty()) continue;
    folders.push_back(folder);
    const absl::Status kept = KeepCheckpoint(checkpoints, folder);
    if (!kept.ok()) LogWarn(path, " is served, but its job may remove it: ", kept.message());
  }
  return folders;
}

JobManager::Options OptionsOf(const ServerConfig& config, const RootDir& checkpoints) {
  JobManager::Options options;
  options.trainers.configured = config.train_workers;
  options.trainers.tokens = {config.join_token, config.local_token};
  options.serving_workers = config.train_on_serving ? config.workers : 0;
  options.limits.form = config.start_timeout;
  options.encrypt_links = config.encrypt_links;
  options.served = KeepServed(checkpoints, config);
  return options;
}

}  // namespace

TrainingSubsystem::~TrainingSubsystem() { Stop(); }

absl::StatusOr<std::unique_ptr<TrainingSubsystem>> TrainingSubsystem::Open(RequestContext* training_context,
                                                                           GroupStore* store,
                                                                           std::string worker_binary) {
  std::unique_ptr<TrainingSubsystem> room(new TrainingSubsystem(training_context, store, std::move(worker_binary)));
  RETURN_IF_ERROR(room->OpenRoots());
  if (training_context->config->train_workers > 0 || training_context->config->train_on_serving) {
    room->metrics_ = std::make_unique<TrainingMetrics>(training_context->metrics->registry());
    const absl::Status jobs = room->checkpoints_.has_value() ? room->OpenJobs() : room->no_jobs_;
    if (IsOfDisk(jobs) && !training_context->config->only_trains) {  // else there is nothing to go on with
      room->DisableJobs(jobs);
    } else if (!jobs.ok()) {
      return absl::Status(jobs.code(), absl::StrCat("--checkpoint_root=", training_context->config->checkpoint_root,
                                                    ": ", jobs.message()));
    }
  }
  TrainingContext training;
  training.jobs = room->jobs_.get();
  training.no_jobs = room->no_jobs_;
  training.packs = room->packs_.get();
  training.datasets = room->datasets_.has_value() ? &*room->datasets_ : nullptr;
  training.checkpoints = room->checkpoints_.has_value() ? &*room->checkpoints_ : nullptr;
  training.check_model =
      AskWorkerProgram({.binary = room->worker_binary_,
                        .checkpoint_root = room->config_->checkpoint_root,
                        .offload_dir = room->config_->train_offload_dir,
                        .workers_are_local = room->config_->local_train_workers == room->config_->train_workers,
                        .stopping = [room = room.get()] { return room->stopping_.load(); }});
  room->service_ = std::make_unique<TrainingServiceImpl>(training_context, std::move(training));
  return room;
}

absl::Status TrainingSubsystem::OpenRoots() {
  if (!config_->checkpoint_root.empty()) {
    absl::StatusOr<RootDir> root = RootDir::Open(config_->checkpoint_root, "the checkpoint root");
    if (root.ok()) {
      checkpoints_.emplace(*std::move(root));
    } else {  // clients see the error, too
      no_jobs_ = absl::UnavailableError(
          absl::StrReplaceAll(root.status().message(), {{absl::StrCat(" ", config_->checkpoint_root), ""}}));
    }
  }
  if (config_->dataset_root.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(RootDir root, RootDir::Open(config_->dataset_root, "the dataset root"));
  datasets_.emplace(std::move(root));
  preparer_ = std::make_unique<Packer>(
      PackerOptions{.dataset_root = config_->dataset_root,
                    .checkpoint_root = config_->checkpoint_root,
                    .tokenizer = training_context_->text->tokenizer(),
                    .chat_template = training_context_->text->chat_template(),
                    .model = config_->model,
                    .num_threads = std::max(1, UsableCores() / 2)});  // the other cores are for serving
  packs_ = std::make_unique<PackRunner>(preparer_.get());
  return absl::OkStatus();
}

void TrainingSubsystem::DisableJobs(const absl::Status& why) {
  LogError("serving goes on without training jobs: ", config_->checkpoint_root, ": ", why.message());
  no_jobs_ = why;
  jobs_ = nullptr;
  fleet_ = nullptr;
  metrics_->JournalLost();
}

absl::Status TrainingSubsystem::OpenJobs() {
  ASSIGN_OR_RETURN(std::unique_ptr<JobStore> journal, JobStore::Open(config_->checkpoint_root + kJournal));
  ASSIGN_OR_RETURN(RootDir logs, RootDir::Open(config_->checkpoint_root, "the checkpoint root"));
  sink_ = std::make_unique<LossLog>(std::move(logs), [] { return absl::Now(); });
  if (config_->local_train_workers > 0) {
    LocalFleet::Options fleet;
    fleet.what = "training worker";
    fleet.count = config_->local_train_workers;
    fleet.binary = worker_binary_;
    fleet.args = [this](int index) { return WorkerArgs(index); };
    fleet_ = std::make_unique<LocalFleet>(std::move(fleet));
    fleet_->Finalize();  // a later start may succeed
  }
  JobLoop::Hooks hooks;
  hooks.open_store = [this](const std::string& token) { store_->Open(token); };
  hooks.close_store = [this](const std::string& token) { store_->Close(token); };
  hooks.kill_worker = [this](int index, int64_t pid) {
    if (fleet_ != nullptr) fleet_->Kill(index, pid);
  };
  hooks.end_of = [this](int index, int64_t pid) {
    return fleet_ != nullptr ? fleet_->EndOf(index, pid) : std::string();
  };
  hooks.share_serving = [training_context = training_context_](bool wanted) {
    if (training_context->engine == nullptr) return absl::ZeroDuration();
    training_context->engine->slices()->Want(wanted);
    return training_context->engine->slices()->given(MonotonicNow());
  };
  hooks.has_unread = training_context_->has_unread;
  hooks.checkpoints_of = [root = &*checkpoints_](const std::string& job_id) {
    return ListCheckpoints(*root, job_id).value_or(std::vector<int64_t>());
  };
  hooks.on_counts = [this](const TrainingCounts& counts) { metrics_->Update(counts); };
  jobs_ = std::make_unique<JobLoop>(OptionsOf(*config_, *checkpoints_), std::move(journal), packs_.get(), sink_.get(),
                                    std::move(hooks));
  RETURN_IF_ERROR(jobs_->Start());
  static_cast<void>(jobs_->Post([jobs = jobs_.get(), root = &*checkpoints_, pool = training_context_->file_pool](
                                    JobManager& manager) { FinishDeletions(manager, jobs, root, pool); }));
  // No fork is being made yet; files are removed where files are handled.
  static_cast<void>(jobs_->Post([root = &*checkpoints_, pool = training_context_->file_pool](JobManager& jobs) {
    std::vector<std::string> unfinished =
        FindUnfinishedForks(*root, [&jobs](const std::string& id) { return jobs.Get(id).ok(); });
    if (unfinished.empty()) return;
    pool->Post({.client = "forks",
                .run =
                    [root, unfinished] {
                      for (const std::string& id : unfinished) {
                        LogInfo(id, ": removed: the folder of a fork that the last server did not finish");
                        RemoveForkFolder(*root, id);
                      }
                    },
                .refuse = [](const absl::Status&) {}});
  }));
  return absl::OkStatus();
}

std::vector<std::string> TrainingSubsystem::WorkerArgs(int index) const {
  std::vector<std::string> args = FlagsToWorkers(*config_, kToTrainingWorkers);
  args.insert(args.end(), {absl::StrCat("--server=", door_.server), absl::StrCat("--server_socket=", door_.socket),
                           "--role=train", absl::StrCat("--threads=", config_->train_threads),
                           absl::StrCat("--local_index=", index), absl::StrCat("--join_token_file=", door_.token_file),
                           absl::StrCat("--metrics_port=", config_->worker_metrics_port < 0 ? -1 : 0)});
  return args;
}

absl::Status TrainingSubsystem::StartWorkers(Door door) {
  door_ = std::move(door);
  return fleet_ != nullptr ? fleet_->Start() : absl::OkStatus();
}

void TrainingSubsystem::Drain(std::function<void()> done) {
  if (jobs_ == nullptr) return done();
  jobs_->Drain(std::move(done));
}

void TrainingSubsystem::StopWorkers() {
  // If the server was not drained, jobs must not count the end of their workers as a loss.
  if (jobs_ != nullptr) static_cast<void>(jobs_->Post([](JobManager& jobs) { jobs.Drain(); }));
  if (fleet_ != nullptr) fleet_->Stop(kStopGrace);
}

void TrainingSubsystem::Stop() {
  stopping_ = true;
  if (packs_ != nullptr) packs_->Stop();
  if (jobs_ != nullptr) jobs_->Stop();
}

}  // namespace switchyard::server
