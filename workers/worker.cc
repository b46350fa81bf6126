#include "workers/worker.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/fnv1a.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/model/dummy_weights.h"
#include "workers/model/families/family.h"
#include "workers/model/memory_plan.h"
#include "workers/model/params.h"
#include "workers/model/warm_up.h"
#include "workers/ops/isa.h"
#include "workers/process_stats.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

constexpr int64_t kMostAddressSpace = int64_t{1} << 46;

// Whether the checkpoint has every tensor that the model wants, in its shape: before anything is started.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelConfig& config, DType dtype) {
  // A config of absurd sizes must not get as far as address space; what one rank needs is checked when its seat is
  // known.
  RETURN_IF_ERROR(CheckMemory(config, {dtype, 0, 0}, MachineMemoryBytes()));
  RETURN_IF_ERROR(CheckMemory(config, {dtype, config.num_experts, 0}, kMostAddressSpace));
  // The destinations are never touched, so they cost address space only.
  std::vector<int32_t> all_experts(static_cast<size_t>(config.num_experts));
  std::iota(all_experts.begin(), all_experts.end(), 0);
  absl::StatusOr<ModelWeights> untouched = AllocateWeights(config, dtype, std::move(all_experts));
  RETURN_IF_ERROR(untouched.status());
  return BuildParams(config, *FindFamily(config.model_type), checkpoint, &*untouched).status();
}

// Of config.json, which is all that random weights depend on.
std::string DummyHash(const std::string& model_dir) {
  std::ifstream file(model_dir + "/config.json", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return absl::StrCat("dummy-", absl::Hex(Fnv1a(text), absl::kZeroPad16));
}

std::string Mib(int64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace

Worker::Worker(WorkerOptions options, ModelConfig config, std::optional<Checkpoint> checkpoint)
    // With one thread there is nobody to spin for.
    : options_(std::move(options)),
      config_(std::move(config)),
      checkpoint_(std::move(checkpoint)),
      pool_(options_.threads) {}

Worker::~Worker() { Leave(); }

absl::StatusOr<std::unique_ptr<Worker>> Worker::Open(WorkerOptions options) {
  ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(options.model_dir));
  std::optional<Checkpoint> checkpoint;
  DType dtype = config.file_dtype.value_or(DType::kBf16);
  if (!options.dummy_weights) {
    ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(options.model_dir));
    ASSIGN_OR_RETURN(dtype, ServingDType(options.dtype, config, *checkpoint));
    RETURN_IF_ERROR(CheckTensors(*checkpoint, config, dtype));
  } else if (options.dtype != "auto") {
    ASSIGN_OR_RETURN(dtype, NamedDType(options.dtype));
  }
  auto worker = std::unique_ptr<Worker>(new Worker(std::move(options), std::move(config), std::move(checkpoint)));
  worker->dtype_ = dtype;
  worker->weights_hash_ =
      worker->checkpoint_.has_value() ? worker->checkpoint_->Hash() : DummyHash(worker->options_.model_dir);
  if (const std::string& profile = worker->options_.forecast.profile; !profile.empty())
    RETURN_IF_ERROR(ReadProfile(profile, worker->weights_hash_).status());
  RETURN_IF_ERROR(worker->OpenDevice());
  return worker;
}

absl::Status Worker::OpenDevice() {
  const Device device = options_.device;
  if (device.is_cpu()) return absl::OkStatus();
  ASSIGN_OR_RETURN(DeviceBackend* const backend, BackendOf(device.kind));
  ASSIGN_OR_RETURN(const DeviceDescription description, backend->Describe(device.index));
  ASSIGN_OR_RETURN(queue_, backend->NewQueue(device.index, {.deterministic = options_.deterministic}));
  LogInfo(device.ToString(), ": ", description.name, ", compute capability ", description.capability, ", ",
          Mib(description.free_bytes), " of ", Mib(description.total_bytes), " free");
  return absl::OkStatus();
}

Stream Worker::stream() { return queue_ == nullptr ? Stream::OnCpu(&pool_) : Stream::On(queue_.get(), &pool_); }

std::string Worker::isa() const {
  if (options_.device.is_cpu()) return IsaName(CurrentIsa());
  const auto description = RegisteredBackend(options_.device.kind).Describe(options_.device.index);
  return absl::StrCat("cuda ", description.ok() ? description->capability : "?",
                      options_.deterministic ? " deterministic" : "", uses_graphs() ? "" : " no graphs");
}

int64_t Worker::memory_bytes() const {
  if (options_.device.is_cpu()) return MachineMemoryBytes();
  const auto description = RegisteredBackend(options_.device.kind).Describe(options_.device.index);
  return description.ok() ? description->total_bytes : 0;
}

// What weights, scratch and cache may still take.
absl::StatusOr<int64_t> Worker::AvailableBytes() const {
  if (options_.device.is_cpu()) return AvailableMemoryBytes();
  ASSIGN_OR_RETURN(const DeviceDescription now,
                   RegisteredBackend(options_.device.kind).Describe(options_.device.index));
  const auto allowed = static_cast<int64_t>(options_.gpu_memory_fraction * static_cast<double>(now.total_bytes));
  return std::min(now.free_bytes, allowed - MemoryInUse(options_.device.kind));
}

absl::StatusOr<ModelWeights> Worker::MakeWeights(const Seat& seat, const EngineSettings& settings, Progress progress) {
  LoadOptions load;
  load.dtype = dtype_;
  layout_ = ExpertLayout::Contiguous(static_cast<int>(std::max<int64_t>(config_.num_experts, 1)), seat.world);
  const absl::Span<const int32_t> residents = layout_.Residents(seat.rank);
  if (config_.num_experts > 0) load.residents.assign(residents.begin(), residents.end());
  MemoryNeed need = {dtype_, static_cast<int64_t>(load.residents.size()), settings.kv_cache_bytes};
  const bool budget = !options_.experts.empty() && !load.residents.empty();
  const bool placed = settings.placement.mode != PlacementMode::kStatic;
  if (placed) need.expert_slots = PlacedSlots(settings.placement, config_, seat.world);
  if (budget) {
    ASSIGN_OR_RETURN(need.expert_slots, ExpertSlots(options_.experts, config_, dtype_, need.experts_per_layer));
  }
  ASSIGN_OR_RETURN(const int64_t available, AvailableBytes());
  RETURN_IF_ERROR(CheckMemory(config_, need, available));
  const auto rest = static_cast<int64_t>(WeightBytes(config_, dtype_, 0)) + settings.kv_cache_bytes;
  const auto tell = [&](int64_t done, int64_t total) { return progress == nullptr || progress(done, total); };
  if (budget) {
    ASSIGN_OR_RETURN(experts_, RankExperts::Open({.file = ExpertFileInput(available - rest),
                                                  .options = options_.experts,
                                                  .residents = load.residents},
                                                 tell));
  }
  if (placed) {
    ASSIGN_OR_RETURN(placement_, RankPlacement::Open({.file = ExpertFileInput(available - rest),
                                                      .settings = settings.placement,
                                                      .rank = seat.rank,
                                                      .world = seat.world,
                                                      .copy_bytes_per_second = options_.experts.copy_bytes_per_second},
                                                     tell));
  }
  load.experts = !budget && !placed;
  load.num_threads = options_.threads;
  load.device = options_.device;
  load.progress = std::move(progress);
  if (!checkpoint_.has_value()) return MakeDummyWeights(config_, std::move(load));
  return LoadWeights(*checkpoint_, config_, std::move(load));
}

absl::Status Worker::CheckPlacement(const PlacementSettings& placement) const {
  if (placement.mode == PlacementMode::kStatic) return absl::OkStatus();
  const std::string mode = absl::StrCat("--placement=", NameOf(placement.mode));
  if (!options_.device.is_cpu()) {
    return absl::UnimplementedError(
        absl::StrCat(mode, " on ", options_.device.ToString(), ": experts change their places on the CPU only so far"));
  }
  if (!options_.experts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(mode, " with --expert_budget=", options_.experts.budget, ": only one of both at a time so far"));
  }
  if (config_.num_moe_layers() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(mode, ": the model has no experts"));
}

RankExpertFileInput Worker::ExpertFileInput(int64_t available) const {
  RankExpertFileInput input;
  input.config = &config_;
  input.checkpoint = checkpoint_.has_value() ? &*checkpoint_ : nullptr;
  input.weights = checkpoint_.has_value() ? checkpoint_->Stamp() : weights_hash_;
  input.dtype = dtype_;
  input.num_threads = options_.threads;
  input.dir = options_.experts.file_dir;
  input.available_bytes = available;
  return input;
}

absl::Status Worker::Load(const Seat& seat, const EngineSettings& settings, Progress progress) {
  if (model_ != nullptr && loaded_rank_ == seat.rank && loaded_world_ == seat.world &&
      loaded_placement_ == settings.placement) {
    return absl::OkStatus();
  }
  runner_.reset();
  // What was learned is of the model, whatever part of it this worker holds.
  if (forecaster_ != nullptr) learned_ = forecaster_->Collect(stream(), !options_.forecast.profile_out.empty());
  forecaster_.reset();
  model_.reset();
  experts_.reset();
  placement_.reset();
  const absl::Time start = absl::Now();
  ASSIGN_OR_RETURN(ModelWeights weights, MakeWeights(seat, settings, std::move(progress)));
  weight_bytes_ = weights.bytes() + (experts_ == nullptr ? 0 : experts_->slot_bytes()) +
                  (placement_ == nullptr ? 0 : placement_->experts()->bytes());
  const int64_t context =
      settings.max_model_len > 0 ? std::min<int64_t>(settings.max_model_len, config_.context) : config_.context;
  LayerExperts* experts = nullptr;
  if (experts_ != nullptr) experts = experts_->offload();
  if (placement_ != nullptr) experts = placement_->experts();
  ASSIGN_OR_RETURN(model_, Model::Create(stream(), config_, dtype_, std::move(weights), context, experts));
  loaded_placement_ = settings.placement;
  loaded_rank_ = seat.rank;
  loaded_world_ = seat.world;
  LogInfo("rank ", seat.rank, " of ", seat.world, ": ", Mib(weight_bytes_), " of ", DTypeName(dtype_), " weights ",
          options_.device.is_cpu() ? "in " : absl::StrCat("on ", options_.device.ToString(), " in "),
          absl::FormatDuration(absl::Trunc(absl::Now() - start, absl::Milliseconds(1))));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Worker::KvBytes(const EngineSettings& settings, int64_t context) const {
  const int64_t one_sequence = KvBytesPerToken(config_, dtype_) * (context + settings.block_size);
  ASSIGN_OR_RETURN(const int64_t available, AvailableBytes());
  int64_t bytes = settings.kv_cache_bytes;
  if (bytes == 0) {
    // Enough for every slot at full length, or the share of the memory that is left: on a device all that it may take.
    const double share = options_.device.is_cpu() ? options_.kv_memory_fraction : 1.0;
    const auto most = static_cast<int64_t>(share * static_cast<double>(available));
    RETURN_IF_ERROR(CheckKvRoom(
        {.available = most,
         .limit = options_.device.is_cpu()
                      ? absl::StrCat(share, " of the machine's ", available)
                      : absl::StrCat("--gpu_memory_fraction=", options_.gpu_memory_fraction, " of ", memory_bytes()),
         .token_bytes = KvBytesPerToken(config_, dtype_),
         .block_size = settings.block_size}));
    bytes = std::min(one_sequence * settings.max_num_seqs, most);
  } else if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("--kv_cache_bytes=", bytes, ": ",
                                                     options_.device.is_cpu() ? "the machine" : "the device", " has ",
                                                     available, " bytes available"));
  }
  return bytes;
}

absl::Status Worker::MakeRunner(const Seat& seat, const EngineSettings& settings) {
  if (runner_ != nullptr) return absl::OkStatus();
  RunnerOptions options;
  options.num_slots = settings.max_num_seqs;
  options.block_size = settings.block_size;
  options.max_rows = settings.max_batched_tokens;
  options.context = model_->max_positions();
  options.graphs = uses_graphs();
  // Scratch first: the cache takes what is left.
  if (!options_.device.is_cpu()) {
    const int64_t recorded = std::min<int64_t>({kMaxGraphRows, options.num_slots, options.max_rows});
    RETURN_IF_ERROR(WarmUp(stream(), model_.get(),
                           {.rows = options.max_rows,
                            .recorded_rows = options.graphs ? recorded : 0,
                            .layout = &layout_,
                            .rank = seat.rank}));
  }
  ASSIGN_OR_RETURN(options.kv_cache_bytes, KvBytes(settings, options.context));
  options.touch_cache = settings.kv_cache_bytes > 0;  // asked for; a share of what is left is an upper bound
  ASSIGN_OR_RETURN(runner_, ModelRunner::Create(model_.get(), stream(), options));
  LogInfo("KV cache: ", runner_->num_blocks(), " blocks of ", options.block_size, " tokens, ",
          Mib(runner_->cache_bytes()));
  const absl::Status status = MakeForecaster(settings);
  if (!status.ok()) runner_.reset();  // the next seat tries it again
  return status;
}

absl::Status Worker::SaveProfile() {
  const std::string& path = options_.forecast.profile_out;
  if (path.empty() || forecaster_ == nullptr) return absl::OkStatus();
  return switchyard::SaveProfile(stream(), *forecaster_, path);
}

absl::Status Worker::MakeForecaster(const EngineSettings& settings) {
  // A budget's policy can use it, too, but what it gained was less than what it cost (tests/bench/offload.md).
  const bool used = UsesEstimates(settings.placement.mode) || !options_.forecast.profile.empty() ||
                    !options_.forecast.profile_out.empty();
  const bool wanted = options_.forecast.when == "always" || (options_.forecast.when == "auto" && used);
  if (!wanted || !options_.device.is_cpu() || config_.num_moe_layers() == 0) return absl::OkStatus();
  ForecastOptions forecast = options_.forecast;
  if (learned_.has_value()) forecast.profile.clear();  // it has that, and more
  ASSIGN_OR_RETURN(forecaster_, MakeRankForecaster(stream(), *model_, weights_hash_, forecast));
  if (learned_.has_value()) RETURN_IF_ERROR(forecaster_->Load(stream(), *learned_));
  learned_.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Worker::FormGroup(const Seat& seat, RendezvousStore* store) {
  GlooGroupOptions group;
  group.rank = seat.rank;
  group.world = seat.world;
  group.epoch = seat.epoch;
  group.token = seat.token;
  group.address = seat.address;
  group.deadline = absl::Now() + seat.form_timeout;
  std::unique_ptr<Communicator> messages;
  ASSIGN_OR_RETURN(messages, FormGlooGroup(group, store));
  if (options_.device.is_cpu() || seat.world == 1) return messages;
  group.control_only = true;
  group.token = absl::StrCat(seat.token, "/watch");
  PrefixStore beside(store, "watch/");
  std::unique_ptr<Communicator> watch;
  ASSIGN_OR_RETURN(watch, FormGlooGroup(group, &beside));
  return options_.form_device_group({.device = options_.device,
                                     .deterministic = options_.deterministic,
                                     .deadline = group.deadline,
                                     .store = store,
                                     .messages = std::move(messages),
                                     .watch = std::move(watch)});
}

absl::Status Worker::Join(const Seat& seat, const EngineSettings& settings, RendezvousStore* store, Progress progress) {
  RETURN_IF_ERROR(CheckPlacement(settings.placement));
  const auto tell = [&](int64_t done, int64_t total) { return progress == nullptr || progress(done, total); };
  RETURN_IF_ERROR(Load(seat, settings, tell));
  RETURN_IF_ERROR(MakeRunner(seat, settings));
  if (placement_ != nullptr) RETURN_IF_ERROR(placement_->Begin(seat.placement, tell));
  {
    absl::MutexLock lock(&mu_);
    if (seat.epoch <= aborted_epoch_)
      return absl::AbortedError(absl::StrCat("epoch ", seat.epoch, " was over before it began"));
    forming_ = store;
    forming_epoch_ = seat.epoch;
  }
  absl::StatusOr<std::unique_ptr<Communicator>> comm = FormGroup(seat, store);
  absl::MutexLock lock(&mu_);
  forming_ = nullptr;
  RETURN_IF_ERROR(comm.status());
  if (seat.epoch <= aborted_epoch_)
    return absl::AbortedError(absl::StrCat("epoch ", seat.epoch, " was aborted while it formed"));
  comm_ = *std::move(comm);
  return runner_->SetGroup(
      comm_.get(), &layout_,
      {.placer = placement_ == nullptr ? nullptr : placement_->placer(), .forecaster = forecaster_.get()});
}

absl::StatusOr<RankResult> Worker::Execute(const StepPlan& head, const RankPlan& part, absl::Duration limit) {
  RETURN_IF_ERROR(Start(head, part, limit));
  return Finish();
}

absl::Status Worker::Start(const StepPlan& head, const RankPlan& part, absl::Duration limit) {
  {
    absl::MutexLock lock(&mu_);
    if (comm_ == nullptr) return absl::FailedPreconditionError("no group");
  }
  return runner_->Start(head, part, absl::Now() + limit);
}

absl::StatusOr<DecidedPlacer*> Worker::Placer() {
  if (placement_ != nullptr && placement_->placer() != nullptr) return placement_->placer();
  return absl::FailedPreconditionError(placement_ == nullptr ? "placement stage: under --placement=static experts stay"
                                                             : "placement stage: this worker is in no group");
}

absl::Status Worker::PreparePlacement(PlacementStage stage) {
  RETURN_IF_ERROR(Placer().status());
  return placement_->Prepare(std::move(stage));
}

absl::StatusOr<bool> Worker::PlacementReady() {
  ASSIGN_OR_RETURN(const DecidedPlacer* const placer, Placer());
  return placer->Ready();
}

void Worker::DropPlacement(int64_t epoch) {
  const absl::StatusOr<DecidedPlacer*> placer = Placer();
  if (!placer.ok()) return;
  if (const absl::Status status = (*placer)->Drop(epoch); !status.ok()) LogWarn("placement stage: ", status.message());
}

absl::Status Worker::ReleasePlacement(int64_t epoch) {
  ASSIGN_OR_RETURN(DecidedPlacer* const placer, Placer());
  return placer->Release(epoch);
}

absl::StatusOr<RankResult> Worker::Finish() { return runner_->Finish(); }

int64_t Worker::device_bytes() const { return options_.device.is_cpu() ? 0 : MemoryInUse(options_.device.kind); }

int64_t Worker::num_replayed() const {
  const DeviceSteps* const steps = runner_ == nullptr ? nullptr : runner_->device_steps();
  return steps == nullptr ? 0 : steps->num_replayed();
}

bool Worker::IsDone() {
  const absl::StatusOr<bool> done = runner_->IsDone();
  return !done.ok() || *done;
}

void Worker::Leave() {
  // Recorded steps hold the group's collectives.
  if (runner_ != nullptr) runner_->LeaveGroup();
  if (placement_ != nullptr) placement_->End();
  std::unique_ptr<Communicator> gone;
  absl::MutexLock lock(&mu_);
  gone = std::move(comm_);
  if (gone != nullptr) gone->Abort("this rank leaves the group");
}

void Worker::ForgetEpochs() {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = 0;
}

void Worker::Abort(int64_t epoch, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  aborted_epoch_ = std::max(aborted_epoch_, epoch);
  if (forming_ != nullptr && forming_epoch_ <= epoch) forming_->CancelWaits(reason);
  if (comm_ != nullptr && forming_epoch_ <= epoch) comm_->Abort(reason);
}

}  // namespace switchyard
