// What a rank does before the first step: model, data, memory, and the checkpoint to go on from.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_targets.h"
#include "workers/checkpoint/manifest/base_folder.h"
#include "workers/checkpoint/safetensors/safetensors.h"
#include "workers/checkpoint/safetensors/shard_table.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/thread_pool.h"
#include "workers/tensor/work_gate.h"
#include "workers/train/job/breathing_files.h"
#include "workers/train/job/check_trainable.h"
#include "workers/train/job/job_folder.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/job/train_job.h"
#include "workers/train/parameters/parameter_files.h"

namespace switchyard {
namespace {

constexpr char kCheckpointRoot[] = "the checkpoint root";
constexpr char kDatasetRoot[] = "the dataset root";

constexpr int kMostLooks = 3;
constexpr absl::Duration kLockRetry = absl::Milliseconds(50);

}  // namespace

absl::Status TrainJob::Prepare() {
  RETURN_IF_ERROR(CountNeighbours());
  RETURN_IF_ERROR(AgreeOn(OpenCheckpoints()));
  RETURN_IF_ERROR(AgreeOn(OpenModel()));
  RETURN_IF_ERROR(AgreeOn(CheckFits()));
  RETURN_IF_ERROR(OpenData());
  RETURN_IF_ERROR(FindStart());
  RETURN_IF_ERROR(AgreeOn(ReadStart()));
  RETURN_IF_ERROR(FindPacking());
  RETURN_IF_ERROR(AgreeOn(MakeModel()));
  RETURN_IF_ERROR(MakePacker());
  RETURN_IF_ERROR(AgreeOn(LoadStart()));
  RETURN_IF_ERROR(AgreeOn(OpenSaver()));
  return AgreeOn(OpenPackingJournal());
}

absl::Status TrainJob::OfData(const absl::Status& status, bool were_right) const {
  if (status.ok() || OutcomeOf(status) != TrainOutcome::kFailed) return status;
  return were_right || absl::IsNotFound(status) ? Blocked(status) : status;
}

absl::Status TrainJob::NoteRead(absl::string_view what, int64_t bytes) {
  noted_bytes_ += bytes;
  Note(absl::StrCat(what, ": ", noted_bytes_ >> 20, " MiB"));
  if (comm_->status().ok() && stop_.load() != StopKind::kNow) return absl::OkStatus();
  return absl::CancelledError("no longer wanted");
}

std::string TrainJob::Holder() const { return absl::StrCat("attempt ", input_.attempt, " of job ", input_.job_id); }

absl::Status TrainJob::OpenCheckpoints() {
  std::unique_ptr<FileSystem> files;
  ASSIGN_OR_RETURN(files, input_.open_checkpoints ? input_.open_checkpoints()
                                                  : OpenJobFolder(input_.checkpoint_root, input_.job_id));
  checkpoints_ = BreathingFiles(std::move(files));
  return absl::OkStatus();
}

absl::Status TrainJob::OpenModel() {
  RETURN_IF_ERROR(Validate(spec_));
  const bool anew = spec_.base_checkpoint.empty();
  const std::string& path = anew ? spec_.architecture : spec_.base_checkpoint;
  const std::string where = absl::StrCat(anew ? "architecture " : "base_checkpoint ", path);
  if (!anew) RETURN_IF_ERROR(In("base_checkpoint", CheckFinished(path)));
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(input_.checkpoint_root, kCheckpointRoot));
  absl::StatusOr<ModelDir> dir = ModelDir::Beneath(root, path);
  if (!dir.ok()) return In(anew ? "architecture" : "base_checkpoint", dir.status());
  model_dir_ = std::make_unique<ModelDir>(*std::move(dir));
  absl::StatusOr<std::string> text = model_dir_->ReadSmallFile("config.json", kMaxConfigBytes);
  if (!text.ok()) return In(where, text.status());
  config_text_ = *std::move(text);
  absl::StatusOr<ModelConfig> config = ParseTrainableConfig(config_text_);
  if (!config.ok()) return In(where, config.status());
  config_ = *std::move(config);
  const absl::StatusOr<TrainingConfig> training_config = ParseTrainingConfig(config_text_);
  if (!training_config.ok()) return In(where, training_config.status());
  training_config_ = *training_config;
  // From here on it is the job's, and in its checkpoints (ShapeOf).
  if (!spec_.balance_weight.has_value()) {
    spec_.balance_weight = training_config_.router_aux_loss_coef.value_or(kDefaultBalanceWeight);
    if (leads())
      LogInfo("job ", input_.job_id, ": balance_weight is ", *spec_.balance_weight, ", as the spec says none");
  }
  if (spec_.sequence_length > config_.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_length: ", spec_.sequence_length, ", the context of ", path, " is ", config_.context));
  }
  if (config_.num_experts % comm_->world() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("workers: the ", config_.num_experts, " experts of ", path,
                                                   " cannot be dealt out to ", comm_->world(), " in equal parts"));
  }
  if (spec_.batch_sequences % comm_->world() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("batch_sequences: ", spec_.batch_sequences,
                                                   " cannot be dealt out to ", comm_->world(),
                                                   " workers in equal parts"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenFile>> TrainJob::OpenFiles(const std::vector<TrainFile>& files,
                                                           absl::string_view what) {
  ASSIGN_OR_RETURN(const RootDir checkpoints, RootDir::Open(input_.checkpoint_root, kCheckpointRoot));
  ASSIGN_OR_RETURN(const RootDir datasets, RootDir::Open(input_.dataset_root, kDatasetRoot));
  std::vector<TokenFile> opened;
  for (const TrainFile& file : files) {
    absl::StatusOr<TokenFile> tokens = file.of_job
                                           ? TokenFile::Open(checkpoints, absl::StrCat(input_.job_id, "/", file.name))
                                           : TokenFile::Open(datasets, file.name);
    if (!tokens.ok()) return In(what, tokens.status());
    // All of it once: who trains then reads what was checked.
    if (leads()) {
      const absl::Status verified = tokens->Verify(config_.vocab_size, [&](int64_t done, int64_t total) {
        WorkGate::PassOwn();
        Note(absl::StrCat("checks ", file.name, ": ", done >> 20, " of ", total >> 20, " MiB"));
        return comm_->status().ok() && stop_.load() != StopKind::kNow;
      });
      if (!verified.ok()) return In(what, verified);
    }
    opened.push_back(*std::move(tokens));
  }
  return opened;
}

// Rank 0 looks, as it does for the rest of the contents.
absl::Status TrainJob::CheckTargets(const DataSource& source, size_t num_files, absl::string_view what) {
  if (!leads()) return absl::OkStatus();
  bool found = false;
  ASSIGN_OR_RETURN(found, source.HasTarget([&](int64_t done, int64_t total) {
    WorkGate::PassOwn();
    Note(absl::StrCat("looks for targets of ", what, ": ", done >> 20, " of ", total >> 20, " MiB"));
    return comm_->status().ok() && stop_.load() != StopKind::kNow;
  }));
  return found ? absl::OkStatus() : In(what, NoTargetError(num_files, source.num_tokens(), spec_.sequence_length));
}

absl::Status TrainJob::OpenData() {
  uint64_t seen = Fnv1a("");
  const auto open = [&](const std::vector<TrainFile>& files, absl::string_view what, bool in_order,
                        std::unique_ptr<DataSource>* source) -> absl::Status {
    std::vector<TokenFile> tokens;
    ASSIGN_OR_RETURN(tokens, OpenFiles(files, what));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const TokenFileHeader& header = tokens[i].header();
      seen = Fnv1a(absl::StrCat(files[i].name, " ", header.num_tokens, " ", header.contents, "\n"), seen);
      if (!in_order) data_names_.push_back({files[i].name, header});
    }
    absl::StatusOr<std::unique_ptr<DataSource>> made = DataSource::Create(
        std::move(tokens),
        {.length = spec_.sequence_length, .vocab = config_.vocab_size, .seed = spec_.seed, .in_order = in_order});
    if (!made.ok()) return In(what, made.status());
    *source = *std::move(made);
    return CheckTargets(**source, files.size(), what);
  };
  Stage("checks its data");
  absl::Status mine = open(input_.data, "datasets", false, &data_);
  if (mine.ok() && !input_.evaluation.empty()) mine = open(input_.evaluation, "evaluation", true, &evaluation_);
  // An earlier attempt has begun with them, so they were right.
  const bool were_right = input_.attempt > 1;
  RankWord word;
  word.SetStatus(OfData(mine, were_right));
  word.number = static_cast<int64_t>(seen);
  std::vector<RankWord> words;
  ASSIGN_OR_RETURN(words, ExchangeWords(comm_, word, input_.disk_limit));
  agreed_ = true;
  RETURN_IF_ERROR(FirstError(words));
  for (size_t r = 1; r < words.size(); ++r) {
    if (words[r].number == words[0].number) continue;
    return OfData(absl::FailedPreconditionError(absl::StrCat("datasets: rank ", r, " has other files than rank 0")),
                  were_right);
  }
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status TrainJob::TakeLock() {
  const absl::Time end = absl::Now() + input_.lock_patience;
  for (;;) {
    absl::StatusOr<std::unique_ptr<File>> lock = LockCheckpoints(checkpoints_.get(), Holder());
    if (lock.ok()) {
      lock_ = *std::move(lock);
      return absl::OkStatus();
    }
    if (!absl::IsFailedPrecondition(lock.status())) return lock.status();
    // Of an attempt that is about to end.
    if (absl::Now() > end || !comm_->status().ok()) return Lost(lock.status());
    const OutsideGate outside;
    absl::SleepFor(kLockRetry);
  }
}

// An older one costs the steps since then, and a disk or a server of files may have had a bad moment: only what cannot
// be read again and again is passed over.
absl::StatusOr<FoundCheckpoint> TrainJob::LookForCheckpoint() {
  for (int look = 1;; ++look) {
    noted_bytes_ = 0;
    absl::StatusOr<FoundCheckpoint> found =
        FindCheckpoint(checkpoints_.get(), CheckpointCheck::kContents,
                       [this](int64_t bytes) { return NoteRead("checks checkpoints", bytes); });
    const bool unread = found.ok() ? found->unread : absl::IsUnavailable(found.status());
    if (!unread || look == kMostLooks) return found;
    Stage(absl::StrCat("looks again for a checkpoint: ",
                       found.ok() ? absl::StrJoin(found->rejected, "; ") : std::string(found.status().message())));
    const OutsideGate outside;
    absl::SleepFor(input_.read_pause);
  }
}

// Rank 0 looks for a checkpoint and reads all of it.  First it takes the lock: an earlier attempt may still commit.
absl::Status TrainJob::FindStart() {
  absl::StatusOr<std::string> folder = std::string();
  if (leads()) {
    Stage("looks for a checkpoint");
    absl::StatusOr<FoundCheckpoint> found = absl::UnknownError("");
    if (const absl::Status locked = TakeLock(); locked.ok()) {
      found = LookForCheckpoint();
    } else {
      found = locked;
    }
    if (found.ok()) {
      folder = found->folder;
      for (const std::string& rejected : found->rejected) {
        warnings_.push_back(absl::StrCat("a damaged checkpoint was passed over: ", rejected));
      }
    } else if (!absl::IsNotFound(found.status())) {
      folder = found.status();
    }
  }
  absl::StatusOr<std::string> agreed = FromLeader(comm_, folder, input_.disk_limit);
  agreed_ = !agreed.ok() && comm_->status().ok();
  RETURN_IF_ERROR(agreed.status());
  start_folder_ = *std::move(agreed);
  return absl::OkStatus();
}

// How far it is: what decides which experts a rank has.
absl::Status TrainJob::ReadStart() {
  if (start_folder_.empty()) return absl::OkStatus();
  const auto read = [this]() -> absl::Status {
    ASSIGN_OR_RETURN(start_manifest_, OpenCheckpoint(checkpoints_.get(), start_folder_, CheckpointCheck::kSizes));
    std::string text;
    ASSIGN_OR_RETURN(text, ReadWholeFile(checkpoints_.get(), absl::StrCat(start_folder_, "/", kTrainerStateName),
                                         kMaxTrainerStateBytes));
    ASSIGN_OR_RETURN(start_, DecodeTrainerState(text));
    // A job's spec stays but for its workers, so what differs are files.
    RETURN_IF_ERROR(OfData(CompareShapes(start_.shape, ShapeOf(spec_, config_text_, data_names_)), input_.attempt > 1));
    if (start_.step == start_manifest_.step && start_.sample == start_.step * spec_.batch_sequences) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(kTrainerStateName, ": step ", start_.step, " and sample ",
                                                   start_.sample, " in a checkpoint of step ", start_manifest_.step));
  };
  const absl::Status status = In(start_folder_, read());
  // All of it was whole a moment ago.
  return absl::IsDataLoss(status) ? Lost(status) : status;
}

absl::Status TrainJob::MakeModel() {
  ModelWeights weights;
  ASSIGN_OR_RETURN(weights, AllocateWeights(config_, dtype_,
                                            PackedResidents(static_cast<int>(config_.num_experts), comm_->world(),
                                                            packing_->packing(), comm_->rank())));
  ASSIGN_OR_RETURN(model_, Model::Create(stream_, config_, dtype_, std::move(weights), spec_.sequence_length));
  ASSIGN_OR_RETURN(parameters_, Parameters::Create(stream_, model_.get(), offloads_ ? OffloadFile() : nullptr));
  TellOffload();
  const int64_t share = spec_.batch_sequences / comm_->world();
  TrainerOptions options;
  options.adamw = {.beta1 = spec_.optimizer.beta1,
                   .beta2 = spec_.optimizer.beta2,
                   .epsilon = spec_.optimizer.epsilon,
                   .weight_decay = spec_.optimizer.weight_decay};
  options.clip_norm = spec_.optimizer.clip_norm;
  options.router = {.balance = spec_.balance, .balance_weight = *spec_.balance_weight, .z_weight = spec_.z_weight};
  options.capacity_factor = spec_.capacity_factor;
  options.balance_bias_rate = spec_.balance_bias_rate;
  options.save = spec_.recompute ? SavePolicy::kLayerInputs : SavePolicy::kAll;
  options.max_sequences = spec_.micro_batch_sequences > 0 ? spec_.micro_batch_sequences : share;
  options.max_length = spec_.sequence_length;
  options.communication = spec_.communication;
  ASSIGN_OR_RETURN(trainer_, Trainer::Create(stream_, model_.get(), parameters_.get(), options));
  return absl::OkStatus();
}

absl::Status TrainJob::LoadStart() {
  const int packing = packer_->groups().packing();
  const std::string anew =
      spec_.base_checkpoint.empty() ? "begins anew" : absl::StrCat("begins from ", spec_.base_checkpoint);
  Stage(start_folder_.empty()
            ? anew
            : absl::StrCat("goes on from ", start_folder_, packing > 1 ? absl::StrCat(", packing ", packing) : ""));
  if (!start_folder_.empty()) {
    const absl::Status restored = In(start_folder_, Restore());
    // All of it was whole a moment ago.
    if (absl::IsDataLoss(restored)) return Lost(restored);
    RETURN_IF_ERROR(restored);
  } else if (spec_.base_checkpoint.empty()) {
    noted_bytes_ = 0;
    RETURN_IF_ERROR(parameters_->Initialise({.seed = spec_.seed, .range = training_config_.initializer_range},
                                            [this](int64_t bytes) { return NoteRead("draws weights", bytes); }));
  } else {
    // All of it once: who loads then reads what was checked.
    if (leads()) {
      ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(input_.checkpoint_root, kCheckpointRoot));
      noted_bytes_ = 0;
      const auto checked = [this](int64_t bytes) {
        WorkGate::PassOwn();
        return NoteRead(absl::StrCat("checks ", spec_.base_checkpoint), bytes);
      };
      RETURN_IF_ERROR(In(spec_.base_checkpoint, CheckBaseFolder(root, spec_.base_checkpoint, *model_dir_, checked)));
    }
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(*model_dir_);
    if (!checkpoint.ok()) return In(spec_.base_checkpoint, checkpoint.status());
    const auto told = [this](int64_t done, int64_t total) {
      Note(absl::StrCat("loads ", spec_.base_checkpoint, ": ", done >> 20, " of ", total >> 20, " MiB"));
      return comm_->status().ok() && stop_.load() != StopKind::kNow;
    };
    RETURN_IF_ERROR(In(spec_.base_checkpoint, parameters_->Load(*checkpoint, stream_.pool().num_threads(), told)));
  }
  return parameters_->Publish();
}

absl::Status TrainJob::Restore() {
  ShardTable table;
  ASSIGN_OR_RETURN(table, ShardTable::Open(checkpoints_.get(), start_folder_, start_manifest_, "optimizer-"));
  noted_bytes_ = 0;
  RETURN_IF_ERROR(RestoreParameters(table, parameters_.get(), [this](int64_t bytes) {
    return NoteRead(absl::StrCat("reads ", start_folder_), bytes);
  }));
  WarnOfOtherBits(start_manifest_.saved_by);
  step_ = saved_step_ = start_.step;
  tokens_ = start_.tokens;
  trainer_->set_steps(start_.step, start_.skipped);
  return absl::OkStatus();
}

SavedBy TrainJob::OwnSavedBy() const {
  return {.world = comm_->world(),
          .threads = stream_.pool().num_threads(),
          .isa = IsaName(CurrentIsa()),
          .software = input_.software,
          .data_type = DTypeName(dtype_)};
}

// Threads change no bits (trainer.h).
void TrainJob::WarnOfOtherBits(const SavedBy& saved_by) {
  const SavedBy own = OwnSavedBy();
  std::string differs;
  if (saved_by.world != own.world) absl::StrAppend(&differs, " ", saved_by.world, " ranks, now ", own.world, ";");
  if (saved_by.isa != own.isa) absl::StrAppend(&differs, " instruction set ", saved_by.isa, ", now ", own.isa, ";");
  if (saved_by.software != own.software)
    absl::StrAppend(&differs, " version ", saved_by.software, ", now ", own.software, ";");
  if (differs.empty()) return;
  differs.pop_back();
  warnings_.push_back(absl::StrCat(start_folder_, " was saved by other means, so what follows need not be to the bit ",
                                   "what it would have been:", differs));
}

absl::Status TrainJob::OpenSaver() {
  SaverOptions options;
  options.writer = {.attempt = input_.attempt,
                    .holder = Holder(),
                    .resumed_from = start_folder_,
                    .keep_last = spec_.checkpoints.keep_last,
                    .keep_every = spec_.checkpoints.keep_every_steps};
  options.saved_by = OwnSavedBy();
  options.weights = dtype_ == DType::kBf16 ? DType::kBf16 : DType::kF32;
  if (leads()) {
    absl::StatusOr<std::vector<CheckpointFile>> side = SideFiles(*model_dir_);
    if (!side.ok()) return side.status();
    for (CheckpointFile& file : *side) {
      if (file.name != "config.json") continue;
      ASSIGN_OR_RETURN(file.text, ConfigWithDType(file.text, options.weights));
    }
    options.side_files = *std::move(side);
  }
  options.available_memory = [this] { return AvailableMemory(); };
  options.disk_limit = input_.disk_limit;
  ASSIGN_OR_RETURN(saver_, CheckpointSaver::Open(checkpoints_.get(), comm_, std::move(options), std::move(lock_)));
  return absl::OkStatus();
}

}  // namespace switchyard
