#include "workers/train/job/setup/job_setup.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/manifest/base_folder.h"
#include "workers/checkpoint/safetensors/shard_table.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/weights/adapters.h"
#include "workers/ops/core/isa.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/job/check_job.h"
#include "workers/train/job/setup/adapter_config.h"
#include "workers/train/job/setup/job_noise.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameter_files.h"
#include "workers/train/parameters/parameter_rules.h"
#include "workers/train/reduce/piece_bytes.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

// Checks the spec's numbers against the model and the ranks.
absl::Status CheckSpecOfModel(const jobs::JobSpec& spec, const model::ModelConfig& config, const std::string& path,
                              int world) {
  if (spec.sequence_length > config.context) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence_length: ", spec.sequence_length, ", the context of ", path, " is ", config.context));
  }
  const int32_t replicas = jobs::FirstPacking(spec.communication);
  if (config.num_experts < world / replicas) {
    return absl::InvalidArgumentError(absl::StrCat(
        "workers: ", world, ", but a layer of ", path, " has ", config.num_experts,
        " experts, and each worker needs at least one of them; at most ", config.num_experts * replicas, " workers"));
  }
  if (spec.batch_sequences % world != 0) {
    return absl::InvalidArgumentError(absl::StrCat("batch_sequences: ", spec.batch_sequences,
                                                   " cannot be dealt out to ", world, " workers in equal parts"));
  }
  return absl::OkStatus();
}

// Opens the model that the job names, without weights, and checks that its ranks can train it; sets a missing
// balance_weight, and missing rates of dropout.  Errors of the spec, the folder and config.json name the field.
absl::StatusOr<JobModel> OpenJobModel(JobContext* context) {
  const jobs::JobSpec& spec = context->spec();
  RETURN_IF_ERROR(Validate(spec));
  const bool anew = spec.base_checkpoint.empty();
  const std::string& path = anew ? spec.architecture : spec.base_checkpoint;
  const std::string where = absl::StrCat(anew ? "architecture " : "base_checkpoint ", path);
  if (!anew) RETURN_IF_ERROR(In("base_checkpoint", checkpoint::CheckFinished(path)));
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(context->input().checkpoint_root, kCheckpointRoot));
  JobModel model;
  ASSIGN_OR_RETURN(ModelDir dir, In(anew ? "architecture" : "base_checkpoint", ModelDir::Beneath(root, path)));
  model.dir = std::make_unique<ModelDir>(std::move(dir));
  ASSIGN_OR_RETURN(model.config_text, In(where, model.dir->ReadSmallFile("config.json", model::kMaxConfigBytes)));
  ASSIGN_OR_RETURN(model.config, In(where, ParseTrainableConfig(model.config_text)));
  ASSIGN_OR_RETURN(model.training, In(where, model::ParseTrainingConfig(model.config_text)));
  // From here on it is part of the job's spec, and of its checkpoints (ShapeOf).
  if (!spec.balance_weight.has_value()) {
    const double weight = model.training.router_aux_loss_coef.value_or(jobs::kDefaultBalanceWeight);
    context->set_balance_weight(weight);
    if (context->leads()) {
      LogInfo("job ", context->input().job_id, ": balance_weight is ", weight, ", as the spec says none");
    }
  }
  jobs::JobSpec filled = spec;
  const std::string noise = FillNoise(model.training, &filled);
  context->set_noise(filled);
  if (!noise.empty()) context->notes().Stage(noise);
  RETURN_IF_ERROR(CheckSpecOfModel(spec, model.config, path, context->comm()->world()));
  return model;
}

}  // namespace

absl::Status JobSetup::Run() {
  job_.fit = std::make_unique<MemoryFit>(&context_, &job_.source.config);
  RETURN_IF_ERROR(job_.fit->CountNeighbours());
  RETURN_IF_ERROR(context_.AgreeOn(OpenCheckpoints()));
  job_.start = std::make_unique<JobStart>(&context_, job_.checkpoints.get());
  job_.packing = std::make_unique<JobPacking>(&context_, job_.checkpoints.get(), job_.fit.get(), job_.start.get());
  job_.chunks = std::make_unique<JobChunks>(&context_, job_.checkpoints.get(), job_.start.get());
  RETURN_IF_ERROR(context_.AgreeOn(OpenModel()));
  RETURN_IF_ERROR(context_.AgreeOn(job_.fit->Check()));
  RETURN_IF_ERROR(OpenData());
  RETURN_IF_ERROR(job_.start->Find());
  RETURN_IF_ERROR(context_.AgreeOn(job_.start->Read(job_.shape)));
  RETURN_IF_ERROR(job_.packing->Find());
  RETURN_IF_ERROR(job_.chunks->Find(job_.source.config));
  RETURN_IF_ERROR(FindPieceBytes());
  RETURN_IF_ERROR(context_.AgreeOn(MakeModel()));
  RETURN_IF_ERROR(job_.packing->MakePacker(job_.trainer.get(), job_.parameters.get()));
  RETURN_IF_ERROR(OpenReferences());
  if (job_.stopped() != jobs::StopKind::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(context_.AgreeOn(LoadStart()));
  RETURN_IF_ERROR(Publish());
  RETURN_IF_ERROR(context_.AgreeOn(OpenSaver()));
  RETURN_IF_ERROR(context_.AgreeOn(job_.packing->OpenJournal()));
  return job_.chunks->Open(job_.trainer.get());
}

absl::Status JobSetup::OpenCheckpoints() {
  const TrainJobInput& input = context_.input();
  ASSIGN_OR_RETURN(job_.checkpoints, input.open_checkpoints ? input.open_checkpoints()
                                                            : OpenJobFolder(input.checkpoint_root, input.job_id));
  return absl::OkStatus();
}

absl::Status JobSetup::OpenModel() {
  ASSIGN_OR_RETURN(job_.source, OpenJobModel(&context_));
  ASSIGN_OR_RETURN(const FrozenElements frozen, CountFrozen(context_.spec(), job_.source.config));
  job_.fit->set_frozen(frozen);
  return absl::OkStatus();
}

absl::Status JobSetup::OpenData() {
  ASSIGN_OR_RETURN(job_.data, OpenJobData(&context_, job_.source.config));
  job_.shape = ShapeOf(context_.spec(), job_.source.config_text, job_.data.names);
  // Adapters go with it, and preferences are measured against it, so another base is another job.
  const bool of_base = context_.spec().lora.rank > 0 || context_.spec().has_pairs();
  return of_base ? AddChecksumOfBase() : absl::OkStatus();
}

absl::Status JobSetup::AddChecksumOfBase() {
  const std::string& base = context_.spec().base_checkpoint;
  absl::StatusOr<std::string> sum = std::string();
  if (context_.leads()) {
    context_.notes().StartCount();
    sum = checkpoint::ChecksumOfWeights(*job_.source.dir, [&](int64_t bytes) {
      return context_.NoteRead(absl::StrCat("computes the checksum of ", base), bytes);
    });
    if (!sum.ok()) sum = In(base, sum.status());
  }
  ASSIGN_OR_RETURN(job_.shape[kBaseWeights], context_.AgreeOnText(sum));
  return absl::OkStatus();
}

absl::Status JobSetup::MakeModel() {
  const jobs::JobSpec& spec = context_.spec();
  const model::ModelConfig& config = job_.source.config;
  const comm::Communicator& comm = *context_.comm();
  ASSIGN_OR_RETURN(model::ModelWeights weights,
                   model::AllocateWeights(config, context_.dtype(),
                                          PackedResidents(static_cast<int>(config.num_experts), comm.world(),
                                                          job_.packing->packing(), comm.rank())));
  RETURN_IF_ERROR(model::AllocateAdapters(config, context_.dtype(), AdaptersOf(spec.lora), &weights));
  ASSIGN_OR_RETURN(job_.model, model::Model::Create(context_.stream(), config, context_.dtype(), std::move(weights),
                                                    spec.sequence_length));
  ASSIGN_OR_RETURN(
      job_.parameters,
      Parameters::Create(context_.stream(), job_.model.get(), job_.fit->offloads() ? job_.fit->OffloadFile() : nullptr,
                         spec.parameters, spec.zero == 1 ? ShardPlace{comm.rank(), comm.world()} : ShardPlace()));
  job_.fit->ReportOffload(*job_.parameters);
  job_.fit->ReportActivations();
  TrainerOptions options;
  options.optimizer = spec.optimizer;
  options.router = {.balance = spec.balance, .balance_weight = *spec.balance_weight, .z_weight = spec.z_weight};
  options.dpo = spec.dpo;
  options.capacity_factor = spec.capacity_factor;
  options.noise = NoiseRatesOf(spec);
  options.seed = spec.seed;
  options.balance_bias_rate = spec.balance_bias_rate;
  options.save = spec.recompute ? model::SavePolicy::kLayerInputs : model::SavePolicy::kAll;
  options.max_sequences = context_.micro_batch_sequences();
  options.max_length = spec.sequence_length;
  options.step_tokens = spec.batch_sequences * spec.sequence_length;
  options.document_mask = spec.document_mask;
  options.communication = spec.communication;
  options.communication.piece_bytes = piece_bytes_;
  options.restore = spec.restore;
  options.open_activations = job_.fit->ActivationsFile();
  ASSIGN_OR_RETURN(job_.trainer, Trainer::Create(context_.stream(), job_.model.get(), job_.parameters.get(), options));
  return absl::OkStatus();
}

// The same on all ranks, and without effect on a bit.
absl::Status JobSetup::FindPieceBytes() {
  piece_bytes_ = context_.spec().communication.piece_bytes;
  if (piece_bytes_ != jobs::kPiecesByLink || context_.comm()->world() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(piece_bytes_, MeasurePieceBytes(context_.comm(), MonotonicNow() + context_.input().step_limit));
  return absl::OkStatus();
}

absl::Status JobSetup::OpenReferences() {
  const jobs::JobSpec& spec = context_.spec();
  if (!spec.has_pairs()) return absl::OkStatus();
  job_.references =
      std::make_unique<JobReferences>(&context_, job_.checkpoints.get(), &job_.data, job_.shape[kBaseWeights]);
  RETURN_IF_ERROR(job_.references->Read(job_.start->state()));
  if (job_.references->complete() || job_.stopped() != jobs::StopKind::kNone) return absl::OkStatus();
  context_.notes().Stage(absl::StrCat("loads ", spec.base_checkpoint, ", the reference"));
  absl::Status loaded = LoadBase();
  if (loaded.ok() && job_.parameters->adapted())
    loaded = job_.parameters->InitialiseAdapters(spec.seed);  // which then add nothing
  RETURN_IF_ERROR(context_.AgreeOn(loaded));
  RETURN_IF_ERROR(Publish());
  return job_.references->Compute(job_.trainer.get());
}

absl::Status JobSetup::LoadStart() {
  const std::string& base = context_.spec().base_checkpoint;
  const std::string& folder = job_.start->folder();
  const int32_t packing = job_.packing->packing();
  if (job_.parameters->adapted()) {
    context_.notes().Stage(absl::StrCat("loads ", base, ", to which it adapts"));
    RETURN_IF_ERROR(LoadBase());
  }
  if (folder.empty()) {
    context_.notes().Stage(base.empty() ? "begins anew" : absl::StrCat("begins from ", base));
    RETURN_IF_ERROR(job_.parameters->adapted() ? job_.parameters->InitialiseAdapters(context_.spec().seed)
                    : base.empty()             ? Draw()
                                               : LoadBase());
  } else {
    context_.notes().Stage(
        absl::StrCat("goes on from ", folder, packing > 1 ? absl::StrCat(", packing ", packing) : ""));
    const absl::Status restored = In(folder, Restore());
    // The checkpoint was whole a moment ago.
    if (absl::IsDataLoss(restored)) return Lost(restored);
    RETURN_IF_ERROR(restored);
  }
  return absl::OkStatus();
}

// Collective if dense state is sharded.
absl::Status JobSetup::Publish() {
  return job_.parameters->Publish({.comm = context_.comm(), .deadline = MonotonicNow() + context_.input().step_limit});
}

absl::Status JobSetup::Draw() {
  context_.notes().StartCount();
  return job_.parameters->Initialise({.seed = context_.spec().seed, .range = job_.source.training.initializer_range},
                                     [this](int64_t bytes) { return context_.NoteRead("draws weights", bytes); });
}

absl::Status JobSetup::LoadBase() {
  if (base_loaded_) return absl::OkStatus();
  const std::string& base = context_.spec().base_checkpoint;
  // Reads all of it once, so that loading reads checked files.
  if (context_.leads()) {
    ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(context_.input().checkpoint_root, kCheckpointRoot));
    context_.notes().StartCount();
    const auto checked = [&](int64_t bytes) { return context_.NoteRead(absl::StrCat("checks ", base), bytes); };
    RETURN_IF_ERROR(In(base, checkpoint::CheckBaseFolder(root, base, *job_.source.dir, checked)));
  }
  ASSIGN_OR_RETURN(const checkpoint::Checkpoint checkpoint, In(base, checkpoint::Checkpoint::Open(*job_.source.dir)));
  const auto loaded = [&](int64_t done, int64_t total) {
    return context_.NotePart(absl::StrCat("loads ", base), done, total);
  };
  RETURN_IF_ERROR(In(base, job_.parameters->Load(checkpoint, context_.stream().pool().num_threads(), loaded)));
  base_loaded_ = true;
  return absl::OkStatus();
}

absl::Status JobSetup::Restore() {
  const std::string& folder = job_.start->folder();
  const checkpoint::Manifest& manifest = job_.start->manifest();
  ASSIGN_OR_RETURN(checkpoint::ShardTable table,
                   checkpoint::ShardTable::Open(job_.checkpoints.get(), folder, manifest, "optimizer-"));
  context_.notes().StartCount();
  RETURN_IF_ERROR(RestoreParameters(table, job_.parameters.get(), [&](int64_t bytes) {
    return context_.NoteRead(absl::StrCat("reads ", folder), bytes);
  }));
  WarnOfOtherBits(manifest.saved_by);
  job_.trainer->set_steps(job_.start->state().step, job_.start->state().skipped);
  return absl::OkStatus();
}

checkpoint::SavedBy JobSetup::OwnSavedBy() const {
  return {.world = context_.comm()->world(),
          .threads = context_.stream().pool().num_threads(),
          .isa = ops::IsaName(ops::CurrentIsa()),
          .software = context_.input().software,
          .data_type = DTypeName(context_.dtype())};
}

// Threads change no bits (trainer.h).
void JobSetup::WarnOfOtherBits(const checkpoint::SavedBy& saved_by) {
  const checkpoint::SavedBy own = OwnSavedBy();
  std::string differs;
  if (saved_by.world != own.world) absl::StrAppend(&differs, " ", saved_by.world, " ranks, now ", own.world, ";");
  if (saved_by.isa != own.isa) absl::StrAppend(&differs, " instruction set ", saved_by.isa, ", now ", own.isa, ";");
  if (saved_by.software != own.software)
    absl::StrAppend(&differs, " version ", saved_by.software, ", now ", own.software, ";");
  if (differs.empty()) return;
  differs.pop_back();
  context_.Warn(absl::StrCat(job_.start->folder(), " was saved by other means, so what follows need not be to the bit ",
                             "what it would have been:", differs));
}

// Beside adapters there is their configuration in place of the model's.
absl::StatusOr<std::vector<checkpoint::CheckpointFile>> JobSetup::SideFiles(DType weights) const {
  ASSIGN_OR_RETURN(std::vector<checkpoint::CheckpointFile> files, checkpoint::SideFiles(*job_.source.dir));
  if (job_.parameters->adapted()) {
    std::erase_if(files, [](const checkpoint::CheckpointFile& file) {
      return file.name == "config.json" || file.name == "generation_config.json";
    });
    files.push_back({kAdapterConfigName, {}, AdapterConfig(context_.spec())});
    return files;
  }
  for (checkpoint::CheckpointFile& file : files) {
    if (file.name != "config.json") continue;
    ASSIGN_OR_RETURN(file.text, model::ConfigWithDType(file.text, weights));
  }
  return files;
}

absl::Status JobSetup::OpenSaver() {
  const TrainJobInput& input = context_.input();
  SaverOptions options;
  options.writer = {.attempt = input.attempt,
                    .holder = context_.Holder(),
                    .resumed_from = job_.start->folder(),
                    .keep_last = context_.spec().checkpoints.keep_last,
                    .keep_every = context_.spec().checkpoints.keep_every_steps};
  options.saved_by = OwnSavedBy();
  const bool adapted = job_.parameters->adapted();
  const DType weights = context_.dtype() == DType::kBf16 && !adapted ? DType::kBf16 : DType::kF32;
  options.weights = WeightsForm(weights, adapted);
  if (context_.leads()) {
    ASSIGN_OR_RETURN(options.side_files, SideFiles(weights));
  }
  options.available_memory = [fit = job_.fit.get()] { return fit->Available(); };
  options.disk_limit = input.disk_limit;
  ASSIGN_OR_RETURN(job_.saver, CheckpointSaver::Open(job_.checkpoints.get(), context_.comm(), std::move(options),
                                                     job_.start->TakeLock()));
  return absl::OkStatus();
}

}  // namespace switchyard::train
