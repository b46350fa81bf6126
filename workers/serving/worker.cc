#include "workers/serving/worker.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/gguf/gguf_weights.h"
#include "workers/checkpoint/manifest/base_folder.h"
#include "workers/comm/group/link_fit.h"
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/params.h"
#include "workers/model/weights/serving_type.h"
#include "workers/ops/core/isa.h"
#include "workers/serving/weight_agreement.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kMostAddressSpace = int64_t{1} << 46;
// Through which --pack_experts writes to a disk.
constexpr int64_t kPackingBytes = 256 << 20;

// Whether the checkpoint has every tensor that the model wants, in its shape, and fits the adapter (null: none), before
// anything is started; returns StoredFormats.
absl::StatusOr<ops::WeightFormats> CheckTensors(const checkpoint::Checkpoint& checkpoint,
                                                const model::ModelConfig& config, DType dtype,
                                                const checkpoint::LoraAdapter* adapter) {
  // A config of absurd sizes must not get as far as address space.
  RETURN_IF_ERROR(
      model::CheckMemory(config, {.dtype = dtype, .experts_per_layer = config.num_experts}, kMostAddressSpace));
  // The destinations are never touched, so they cost address space only; experts, whose biases are cleared when they
  // are allocated, have none.
  std::vector<int32_t> all_experts(static_cast<size_t>(config.num_experts));
  std::iota(all_experts.begin(), all_experts.end(), 0);
  alignas(kDeviceAlignment) static char nowhere[kDeviceAlignment];
  model::ExpertSpace space;
  if (model::CheckStorable(config).ok()) space.place = [](int, int32_t) { return nowhere; };
  absl::StatusOr<model::ModelWeights> untouched =
      model::AllocateWeights(config, dtype, std::move(all_experts), Device::Cpu(), space);
  RETURN_IF_ERROR(untouched.status());
  ASSIGN_OR_RETURN(std::vector<model::Param> params,
                   model::BuildParams(config, *model::FindFamily(config.model_type), checkpoint, &*untouched));
  if (adapter != nullptr) RETURN_IF_ERROR(model::MergeAdapter(config, *adapter, checkpoint, &params));
  return model::StoredFormats(params, *untouched);
}

// The formats of --quantization=NAME; stored: those of the checkpoint.
absl::StatusOr<ops::WeightFormats> ServingFormats(absl::string_view name, DType dtype, Device device,
                                                  const ops::WeightFormats& stored) {
  if (name == "none") return ops::WeightFormats();
  const bool few_bits = dtype == DType::kBf16 || dtype == DType::kF16 || (device.is_cpu() && dtype == DType::kF32);
  if (name == "auto") return few_bits ? stored : ops::WeightFormats();
  const std::optional<ops::WeightFormat> format = ops::FindWeightFormat(name);
  if (format != ops::WeightFormat::kInt8 && format != ops::WeightFormat::kInt4) {
    return absl::InvalidArgumentError(absl::StrCat("--quantization=", name, ": must be auto, none, int8 or int4"));
  }
  if (!few_bits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--quantization=", name, ": computes in ", device.is_cpu() ? "fp32, " : "", "bf16 or fp16, not --dtype=",
        DTypeName(dtype), device.is_cpu() ? "" : " on ", device.is_cpu() ? "" : device.ToString()));
  }
  return *format;
}

// The form of --kv_cache_dtype=NAME.
absl::StatusOr<ops::KvFormat> ServingKvFormat(const std::string& name, DType dtype, Device device) {
  if (name == "auto") return ops::KvFormat::kPlain;
  const std::optional<ops::KvFormat> format = ops::FindKvFormat(name);
  if (!format.has_value() || *format == ops::KvFormat::kPlain) {
    return absl::InvalidArgumentError(absl::StrCat("--kv_cache_dtype=", name, ": must be auto, int8 or fp8"));
  }
  if (device.is_cpu() && dtype != DType::kF64) return *format;
  return absl::InvalidArgumentError(absl::StrCat("--kv_cache_dtype=", name,
                                                 ": is for fp32, bf16 and fp16 on CPUs so far, not ", DTypeName(dtype),
                                                 " on ", device.ToString()));
}

// Null if there is no --adapter.
absl::StatusOr<std::unique_ptr<const checkpoint::LoraAdapter>> OpenAdapter(const WorkerOptions& options) {
  if (options.adapter_dir.empty()) return nullptr;
  const std::string flag = absl::StrCat("--adapter=", options.adapter_dir, ": ");
  if (options.dummy_weights) return absl::InvalidArgumentError(flag + "goes with no --load_format=dummy");
  absl::StatusOr<std::unique_ptr<const checkpoint::LoraAdapter>> adapter =
      checkpoint::LoraAdapter::Open(options.adapter_dir, options.memory().available_bytes());
  if (!adapter.ok()) return absl::Status(adapter.status().code(), flag + std::string(adapter.status().message()));
  LogInfo(flag, "adapts ", (*adapter)->matrices().size(), " matrices, into which it is merged");
  return adapter;
}

// Whether --adapters is possible with the other options.
absl::Status CheckAdapters(const WorkerOptions& options) {
  if (options.adapters.empty()) return absl::OkStatus();
  if (options.dummy_weights) return absl::InvalidArgumentError("--adapters: goes with no --load_format=dummy");
  if (!options.adapter_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--adapters: goes with no --adapter=", options.adapter_dir,
                                                   ", as adapters are of the model as it is"));
  }
  if (options.device.is_cpu()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("--adapters: is for workers on CPUs so far, not --device=", options.device.ToString()));
}

// The hash of config.json, which is all that random weights depend on.
absl::StatusOr<std::string> DummyHash(const std::string& model_path) {
  ASSIGN_OR_RETURN(const ModelDir dir, checkpoint::OpenModelFiles(model_path));
  ASSIGN_OR_RETURN(const std::string text, dir.ReadSmallFile("config.json", model::kMaxConfigBytes));
  return absl::StrCat("dummy-", absl::Hex(Fnv1a(text), absl::kZeroPad16));
}

}  // namespace

Worker::Worker(WorkerOptions options, model::ModelConfig config, std::optional<checkpoint::Checkpoint> checkpoint)
    // One thread alone waits for no other, so it does not spin.
    : options_(std::move(options)),
      config_(std::move(config)),
      checkpoint_(std::move(checkpoint)),
      pool_(options_.threads),
      expert_budget_(options_.experts) {}

Worker::~Worker() { Leave(); }

absl::StatusOr<std::unique_ptr<Worker>> Worker::Open(WorkerOptions options) {
  // Checked before any of the checkpoint's files is believed.
  std::optional<checkpoint::Manifest> manifest;
  if (!options.dummy_weights) {
    ASSIGN_OR_RETURN(const ModelDir dir, checkpoint::OpenModelFiles(options.model_dir));
    ASSIGN_OR_RETURN(manifest, checkpoint::CheckServedFolder(dir));
  }
  ASSIGN_OR_RETURN(model::ModelConfig config, model::ReadModelConfig(options.model_dir));
  RETURN_IF_ERROR(CheckAdapters(options));
  ASSIGN_OR_RETURN(std::unique_ptr<const checkpoint::LoraAdapter> adapter, OpenAdapter(options));
  std::optional<checkpoint::Checkpoint> checkpoint;
  DType dtype = config.file_dtype.value_or(DType::kBf16);
  if (!options.dummy_weights) {
    ASSIGN_OR_RETURN(checkpoint, checkpoint::Checkpoint::Open(options.model_dir));
    if (manifest.has_value()) RETURN_IF_ERROR(checkpoint::ExpectManifest(*manifest, *checkpoint));
    ASSIGN_OR_RETURN(dtype, model::ServingDType(options.dtype, config, *checkpoint));
  } else if (options.dtype != "auto") {
    ASSIGN_OR_RETURN(dtype, model::NamedDType(options.dtype));
  }
  ops::WeightFormats stored;
  if (checkpoint.has_value()) {
    // What is never shared out must fit in the smallest form: a config of absurd sizes gets no further.
    RETURN_IF_ERROR(model::CheckMemory(config, {.dtype = dtype, .format = ops::WeightFormat::kInt4},
                                       ReadMachineMemory().total_bytes));
    ASSIGN_OR_RETURN(stored, CheckTensors(*checkpoint, config, dtype, adapter.get()));
  }
  ASSIGN_OR_RETURN(RankAdapters adapters,
                   RankAdapters::Open(options.adapters, config, dtype, options.memory().available_bytes()));
  ASSIGN_OR_RETURN(const ops::WeightFormats format,
                   ServingFormats(options.quantization, dtype, options.device, stored));
  ASSIGN_OR_RETURN(const ops::KvFormat kv_format, ServingKvFormat(options.kv_cache_dtype, dtype, options.device));
  // What one rank needs is checked when its assignment is known.
  if (checkpoint.has_value()) {
    RETURN_IF_ERROR(model::CheckMemory(config, {.dtype = dtype, .format = format, .adapter_bytes = adapters.bytes()},
                                       ReadMachineMemory().total_bytes));
  }
  auto worker = std::unique_ptr<Worker>(new Worker(std::move(options), std::move(config), std::move(checkpoint)));
  worker->dtype_ = dtype;
  worker->format_ = format;
  worker->kv_format_ = kv_format;
  if (worker->checkpoint_.has_value()) {
    worker->weights_hash_ = worker->checkpoint_->Hash(worker->config_.reading());
    if (adapter != nullptr) worker->weights_hash_.replace(16, 16, adapter->Hash());
    if (!adapters.empty()) worker->weights_hash_.replace(16, 16, adapters.Hash());
  } else {
    ASSIGN_OR_RETURN(worker->weights_hash_, DummyHash(worker->options_.model_dir));
  }
  worker->adapter_ = std::move(adapter);
  worker->adapters_ = std::move(adapters);
  if (const ForecastOptions& forecast = worker->options_.forecast; !forecast.profile.empty())
    RETURN_IF_ERROR(ReadProfile(forecast, worker->weights_hash_).status());
  const WorkerOptions& made = worker->options_;
  RETURN_IF_ERROR(offload::CheckColdExperts(made.experts, made.device.is_cpu(), made.deterministic));
  if (made.experts.automatic() && !made.device.is_cpu())
    return absl::InvalidArgumentError("--expert_memory=auto: is for CPUs; give a share or a size");
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
  if (options_.device.is_cpu()) return ops::IsaName(ops::CurrentIsa());
  const auto description = RegisteredBackend(options_.device.kind).Describe(options_.device.index);
  return absl::StrCat("cuda ", description.ok() ? description->capability : "?",
                      options_.deterministic ? " deterministic" : "", uses_graphs() ? "" : " no graphs");
}

int64_t Worker::memory_bytes() const {
  if (options_.device.is_cpu()) return ReadMachineMemory().total_bytes;
  const auto description = RegisteredBackend(options_.device.kind).Describe(options_.device.index);
  return description.ok() ? description->total_bytes : 0;
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> Worker::FormGroup(const fleet::RankAssignment& assignment,
                                                                      const std::string& address,
                                                                      comm::RendezvousStore* store) {
  comm::GroupOptions group;
  group.rank = assignment.rank;
  group.world = assignment.world;
  group.epoch = assignment.epoch;
  group.token = assignment.store_token;
  group.address = address;
  group.encrypt_links = assignment.encrypt_links;
  group.deadline = MonotonicNow() + absl::Milliseconds(assignment.form_deadline_ms);
  std::unique_ptr<comm::Communicator> messages;
  ASSIGN_OR_RETURN(messages, comm::FormSocketGroup({.group = group}, store));
  if (options_.device.is_cpu() || assignment.world == 1) return messages;
  group.token = absl::StrCat(assignment.store_token, "/watch");
  comm::PrefixStore beside(store, "watch/");
  std::unique_ptr<comm::Communicator> watch;
  ASSIGN_OR_RETURN(watch, comm::FormSocketGroup({.group = group}, &beside));
  return options_.form_device_group({.device = options_.device,
                                     .deterministic = options_.deterministic,
                                     .deadline = group.deadline,
                                     .store = store,
                                     .messages = std::move(messages),
                                     .watch = std::move(watch)});
}

absl::Status Worker::Join(const fleet::RankAssignment& assignment, const std::string& address,
                          const fleet::EngineSettings& settings, comm::RendezvousStore* store, Progress progress) {
  RETURN_IF_ERROR(CheckPlacement(settings.placement, assignment.world));
  if (settings.add_outputs && !options_.device.is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--combine=added: for workers on CPUs, this one has ", options_.device.ToString()));
  }
  const auto report = [&](fleet::LoadPhase phase, int64_t done, int64_t total) {
    return progress == nullptr || progress({assignment.epoch, phase, done, total});
  };
  RETURN_IF_ERROR(group_.Await(assignment.epoch, store, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(wants_in_place_, WantsInPlace(assignment, settings, store));
    return absl::OkStatus();
  }));
  const bool loaded = HasLoaded(assignment, settings);
  if (!loaded) RETURN_IF_ERROR(Unload());
  RETURN_IF_ERROR(group_.Await(assignment.epoch, store, [&] { return AgreeOnBudget(assignment, settings, store); }));
  if (!loaded) RETURN_IF_ERROR(Load(assignment, settings, report));
  RETURN_IF_ERROR(MakeRunner(assignment, settings));
  if (placement_ != nullptr) {
    RETURN_IF_ERROR(placement_->Begin(
        stream(), [&](int64_t done, int64_t total) { return report(fleet::LoadPhase::kExperts, done, total); }));
  }
  // The others may load for long yet.  Whoever sees their progress, the server, ends this wait (Abort).
  RETURN_IF_ERROR(group_.Await(assignment.epoch, store, [&] {
    RETURN_IF_ERROR(
        AgreeOnWeights(assignment.rank, assignment.world, weight_sums_, expert_sums_, store, absl::InfiniteFuture()));
    if (in_place_ != nullptr) RETURN_IF_ERROR(in_place_->Share(store, absl::InfiniteFuture()));
    if (shared_weights_ == nullptr) return absl::OkStatus();
    return shared_weights_->Share(assignment.rank, assignment.world, store, absl::InfiniteFuture());
  }));
  ASSIGN_OR_RETURN(comm::Communicator* const comm,
                   group_.Form(assignment.epoch, store, [&] { return FormGroup(assignment, address, store); }));
  const absl::Duration limit = absl::Milliseconds(assignment.form_deadline_ms);
  if (options_.device.is_cpu() && config_.num_moe_layers() > 0) {
    ASSIGN_OR_RETURN(links_, comm::MeasureLinks(comm, MonotonicNow() + limit));
  }
  RETURN_IF_ERROR(runner_->SetGroup(comm, &layout_,
                                    {.balancer = placement_ == nullptr ? nullptr : placement_->balancer(),
                                     .load_predictor = load_predictor_.get(),
                                     .all_experts = in_place_ == nullptr ? nullptr : in_place_->all_experts()}));
  return CaptureGraphs(limit, report);
}

absl::Status Worker::Start(const batching::StepPlan& head, const batching::RankPlan& part, absl::Duration limit) {
  if (!group_.stands()) return absl::FailedPreconditionError("no group");
  return runner_->Start(head, part, MonotonicNow() + limit);
}

absl::StatusOr<batching::RankResult> Worker::Finish() { return runner_->Finish(); }

int64_t Worker::device_bytes() const { return options_.device.is_cpu() ? 0 : MemoryInUse(options_.device.kind); }

model::GraphCounters Worker::graph_counters() const {
  const model::DeviceSteps* const steps = runner_ == nullptr ? nullptr : runner_->device_steps();
  if (steps == nullptr) return graphs_before_;
  model::GraphCounters all = steps->counters();
  all.captured += graphs_before_.captured;
  all.capture_seconds += graphs_before_.capture_seconds;
  all.replayed += graphs_before_.replayed;
  all.did_not_fit += graphs_before_.did_not_fit;
  return all;
}

bool Worker::IsDone() {
  const absl::StatusOr<bool> done = runner_->IsDone();
  return !done.ok() || *done;
}

absl::StatusOr<std::string> Worker::PackExperts(moe::ExpertFile::Progress progress) {
  if (config_.num_moe_layers() == 0)
    return absl::InvalidArgumentError(absl::StrCat("--pack_experts: ", options_.model_dir, " has no experts"));
  RankExpertFileInput input = ExpertFileInput(options_.memory().available_bytes());
  if (options_.device.is_cpu()) input.staging_bytes = kPackingBytes;
  std::unique_ptr<moe::ExpertFile> file;
  ASSIGN_OR_RETURN(file, OpenRankExpertFile(input, progress));
  return absl::StrCat(file->built() ? "packed " : "found ", config_.num_moe_layers() * config_.num_experts,
                      " experts in ", Mib(file->bytes()), ": ", file->path());
}

void Worker::Leave() {
  // Recorded steps hold the group's collectives.
  if (runner_ != nullptr) runner_->LeaveGroup();
  if (placement_ != nullptr) placement_->End();
  if (in_place_ != nullptr) in_place_->End();
  group_.Leave();
}

}  // namespace switchyard::worker
