// The part of Worker that loads an assignment: weights, experts' slots, the KV cache, and the load predictor.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/popularity/profiled_shares.h"
#include "workers/model/config/memory_plan.h"
#include "workers/model/runner/warm_up.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/model/weights/weights.h"
#include "workers/moe/experts/expert_checksum.h"
#include "workers/serving/shared_weights.h"
#include "workers/serving/weight_agreement.h"
#include "workers/serving/worker.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::worker {
namespace {

// The share of the host's memory available after loading that the KV cache gets if no size is given.
constexpr double kKvMemoryFraction = 0.25;

// What experts leave of the rest of the memory if theirs is to be as much as there is: for scratch, and for programs
// and libraries, which a full control group would read from its disk again and again; and a share for a KV cache whose
// size is not given.
constexpr int64_t kNotForExperts = 384 << 20;
constexpr double kExpertShareBesideCache = 0.75;

moe::ExpertLayout LayoutOf(const model::ModelConfig& config, int world) {
  return moe::ExpertLayout::Contiguous(static_cast<int>(std::max<int64_t>(config.num_experts, 1)), world);
}

// The positions that a sequence may have.
int64_t ServedContext(const model::ModelConfig& config, const fleet::EngineSettings& settings) {
  return settings.max_model_len > 0 ? std::min<int64_t>(settings.max_model_len, config.context) : config.context;
}

}  // namespace

moe::ExpertOffloadCounters Worker::expert_counters() const {
  return experts_ == nullptr ? moe::ExpertOffloadCounters() : experts_->counters();
}

moe::ColdCounters Worker::cold_counters() const {
  return experts_ == nullptr ? moe::ColdCounters() : experts_->cold_counters();
}

absl::StatusOr<MemoryPool> Worker::DeviceMemory() const {
  ASSIGN_OR_RETURN(const DeviceDescription now,
                   RegisteredBackend(options_.device.kind).Describe(options_.device.index));
  const auto allowed = static_cast<int64_t>(options_.gpu_memory_fraction * static_cast<double>(now.total_bytes));
  const int64_t in_use = now.total_bytes - now.free_bytes;
  return MemoryPool{.name = "",
                    .available_bytes = std::max<int64_t>(allowed - in_use, 0),
                    .limit = absl::StrCat("--gpu_memory_fraction=", options_.gpu_memory_fraction, " of ",
                                          now.total_bytes, " bytes, of which ", in_use, " are in use")};
}

RankPlacementInput Worker::PlacementInput(const fleet::RankAssignment& assignment,
                                          const fleet::EngineSettings& settings) const {
  return {.file = ExpertFileInput(0),
          .settings = settings.placement,
          .rank = assignment.rank,
          .world = assignment.world,
          .copy_bytes_per_second = expert_budget_.copy_bytes_per_second};
}

absl::StatusOr<model::MemoryNeed> Worker::NeedOf(const fleet::RankAssignment& assignment,
                                                 const fleet::EngineSettings& settings) const {
  model::MemoryNeed need = {
      .dtype = dtype_, .kv_cache_bytes = settings.kv_cache_bytes, .device = options_.device.kind, .format = format_};
  need.adapter_bytes = adapters_.bytes();
  need.positions = ServedContext(config_, settings);
  if (config_.num_experts > 0) {
    need.experts_per_layer =
        static_cast<int64_t>(LayoutOf(config_, assignment.world).Residents(assignment.rank).size());
  }
  if (settings.placement.has_slots()) {
    need.expert_slots = PlacedSlots(PlacementInput(assignment, settings));
  } else if (!expert_budget_.empty() && need.experts_per_layer > 0) {
    ASSIGN_OR_RETURN(need.expert_slots,
                     ExpertSlots(expert_budget_, config_, weight_type(), options_.device.kind, need.experts_per_layer));
  }
  return need;
}

absl::Status Worker::AgreeOnBudget(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings,
                                   comm::RendezvousStore* store) {
  if (!options_.device.is_cpu()) {  // the memory in question is the device's
    budget_ = ShareMemory(0, {MemoryClaim{.pools = options_.memory().pools}});
    return absl::OkStatus();
  }
  // No worker looks at what is available while another still holds what it is about to give back.
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(assignment.form_deadline_ms);
  RETURN_IF_ERROR(AwaitUnloaded(assignment.rank, assignment.world, store, deadline));
  const bool loaded = HasLoaded(assignment, settings);
  if (!loaded) expert_budget_ = options_.experts;
  MemoryClaim claim = {.pools = options_.memory().pools};
  if (runner_ != nullptr) claim.cache_bytes = runner_->cache_bytes();
  if (loaded) {
    // The cache takes memory as it is used; weights have taken theirs.
    if (runner_ != nullptr) claim.to_come = claim.cache_bytes - runner_->resident_cache_bytes();
  } else {
    ASSIGN_OR_RETURN(const model::MemoryNeed need, NeedOf(assignment, settings));
    claim.to_come = static_cast<int64_t>(std::min<absl::int128>(model::MemoryBytes(config_, need), INT64_MAX));
  }
  const bool chooses = !loaded && expert_budget_.automatic() && config_.num_experts > 0;
  claim.takes_rest = chooses;
  ASSIGN_OR_RETURN(budget_, AgreeOnMemory(assignment.rank, assignment.world, claim, store, deadline));
  if (!chooses) return absl::OkStatus();
  ASSIGN_OR_RETURN(const model::MemoryNeed least, NeedOf(assignment, settings));
  const double share = settings.kv_cache_bytes > 0 ? 1 : kExpertShareBesideCache;
  const int64_t rest = std::max<int64_t>(0, budget_.rest - kNotForExperts);
  const auto more = static_cast<int64_t>(share * static_cast<double>(rest));
  expert_budget_.budget = absl::StrCat(
      more + least.expert_slots * model::ExpertFormsOf(config_, weight_type(), options_.device.kind).bytes());
  return absl::OkStatus();
}

absl::StatusOr<model::ModelWeights> Worker::MakeWeights(const fleet::RankAssignment& assignment,
                                                        const fleet::EngineSettings& settings, Report report) {
  model::LoadOptions load;
  load.dtype = dtype_;
  load.format = format_;
  weight_sums_.clear();
  ASSIGN_OR_RETURN(weight_sums_["config.json"], SumConfig(options_.model_dir));
  expert_sums_.clear();
  load.replicated_sums = &weight_sums_;
  layout_ = LayoutOf(config_, assignment.world);
  const absl::Span<const int32_t> residents = layout_.Residents(assignment.rank);
  if (config_.num_experts > 0) load.residents.assign(residents.begin(), residents.end());
  const bool budget = !expert_budget_.empty() && !load.residents.empty();
  const bool placed = settings.placement.has_slots();
  ASSIGN_OR_RETURN(const model::MemoryNeed need, NeedOf(assignment, settings));
  int64_t host = budget_.own_bytes();
  if (options_.device.is_cpu()) {
    RETURN_IF_ERROR(model::CheckMemory(config_, need, host, budget_.ToString()));
    // The expert file may have to be built in the same memory.
    model::MemoryNeed rest = need;
    rest.experts_per_layer = 0;
    rest.expert_slots = -1;
    host -= static_cast<int64_t>(model::MemoryBytes(config_, rest));
  } else {
    ASSIGN_OR_RETURN(const MemoryPool memory, DeviceMemory());
    RETURN_IF_ERROR(model::CheckMemory(config_, need, memory.available_bytes, absl::StrCat(": ", memory.limit)));
  }
  const auto progress = [report](int64_t done, int64_t total) {
    return report(fleet::LoadPhase::kWeights, done, total);
  };
  ASSIGN_OR_RETURN(auto adapters, adapters_.Load(config_, dtype_, progress));
  if (placed) {
    RankPlacementInput input = PlacementInput(assignment, settings);
    input.file = ExpertFileInput(host);
    ASSIGN_OR_RETURN(placement_, RankPlacement::Open(input, progress));
    SumExpertFile(placement_->file());
  } else if (budget) {
    RankExpertsInput input = {.file = ExpertFileInput(host), .options = expert_budget_, .experts = load.residents};
    ASSIGN_OR_RETURN(input.popularity, KnownPopularity());
    ASSIGN_OR_RETURN(experts_, RankExperts::Open(input, progress));
    SumExpertFile(experts_->file());
  } else if (wants_in_place_) {
    ASSIGN_OR_RETURN(in_place_,
                     RankExpertsInPlace::Load(ExpertFileInput(0), assignment.rank, assignment.world, progress));
  }
  load.experts = !budget && !placed && !wants_in_place_;
  load.adapter = adapter_.get();
  load.num_threads = options_.threads;
  load.device = options_.device;
  load.progress = progress;
  if (!checkpoint_.has_value()) return model::MakeDummyWeights(config_, std::move(load));
  ASSIGN_OR_RETURN(model::ModelWeights weights, model::LoadWeights(*checkpoint_, config_, std::move(load)));
  weights.adapters = std::move(adapters);
  return weights;
}

void Worker::SumExpertFile(const moe::ExpertFile& file) {
  for (int layer = 0; layer < config_.num_moe_layers(); ++layer) {
    moe::ExpertChecksum all;
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      const std::array<uint64_t, 8> words = {file.checksum(layer, expert)};
      all.Add(reinterpret_cast<const char*>(words.data()), sizeof(words));
    }
    expert_sums_[absl::StrCat("experts of MoE layer ", layer)] = all.value();
  }
}

absl::StatusOr<std::vector<int64_t>> Worker::KnownPopularity() const {
  if (learned_.has_value()) return popularity::ProfiledShares(learned_->all);
  if (options_.forecast.profile.empty()) return std::vector<int64_t>();
  ASSIGN_OR_RETURN(const popularity::ProfileBundle bundle, ReadProfile(options_.forecast, weights_hash_));
  return popularity::ProfiledShares(bundle);
}

absl::Status Worker::CheckPlacement(const placement::PlacementSettings& placement, int world) const {
  if (!placement.has_slots()) return absl::OkStatus();
  RETURN_IF_ERROR(placement::CheckExpertMemory(placement, options_.experts.budget));
  if (config_.num_moe_layers() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--placement=", NameOf(placement.mode), ": the model has no experts"));
  }
  return placement::CheckSlots(placement, static_cast<int>(config_.num_experts), world);
}

RankExpertFileInput Worker::ExpertFileInput(int64_t available) const {
  RankExpertFileInput input;
  input.config = &config_;
  input.checkpoint = checkpoint_.has_value() ? &*checkpoint_ : nullptr;
  input.weights = checkpoint_.has_value() ? checkpoint_->Stamp(config_.reading()) : weights_hash_;
  if (adapter_ != nullptr && adapter_->adapts_experts()) {
    input.adapter = adapter_.get();
    absl::StrAppend(&input.weights, " adapter ", adapter_->Hash());
  }
  input.type = weight_type();
  input.num_threads = options_.threads;
  input.dir = expert_budget_.file_dir;
  input.available_bytes = available;
  input.device = options_.device;
  return input;
}

const moe::ExpertFile* Worker::DamagedFile() const {
  if (experts_ != nullptr && experts_->found_damage()) return &experts_->file();
  if (placement_ != nullptr && placement_->found_damage()) return &placement_->file();
  return nullptr;
}

bool Worker::HasLoaded(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings) const {
  return model_ != nullptr && DamagedFile() == nullptr && loaded_rank_ == assignment.rank &&
         loaded_world_ == assignment.world && loaded_settings_ == settings && (in_place_ != nullptr) == wants_in_place_;
}

absl::StatusOr<bool> Worker::WantsInPlace(const fleet::RankAssignment& assignment,
                                          const fleet::EngineSettings& settings, comm::RendezvousStore* store) const {
  // (Added outputs would round by which experts are together.)
  if (assignment.world == 1 || settings.placement.mode != placement::PlacementMode::kAuto ||
      settings.placement.has_slots() || settings.add_outputs) {
    return false;
  }
  absl::Status mine = model::CheckStorable(config_);
  if (!options_.device.is_cpu()) mine = absl::FailedPreconditionError("they are on a device");
  if (!options_.experts.empty()) mine = absl::FailedPreconditionError("--expert_memory keeps a part of them");
  if (config_.num_moe_layers() == 0) mine = absl::FailedPreconditionError("");  // not worth a line
  return AgreeOnInPlace(assignment.rank, assignment.world, mine, store,
                        MonotonicNow() + absl::Milliseconds(assignment.form_deadline_ms));
}

absl::Status Worker::Unload() {
  graphs_before_ = graph_counters();
  runner_.reset();
  // The learned profile is of the model, whatever part of it this worker holds.
  if (load_predictor_ != nullptr) {
    ASSIGN_OR_RETURN(learned_, load_predictor_->Collect(stream()));
  }
  load_predictor_.reset();
  shared_weights_.reset();
  model_.reset();
  if (const moe::ExpertFile* const damaged = DamagedFile(); damaged != nullptr) damaged->Discard();
  experts_.reset();
  placement_.reset();
  in_place_.reset();
  return absl::OkStatus();
}

absl::Status Worker::Load(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings,
                          Report report) {
  const absl::Time start = MonotonicNow();
  ASSIGN_OR_RETURN(model::ModelWeights weights, MakeWeights(assignment, settings, report));
  if (experts_ != nullptr) {
    RETURN_IF_ERROR(experts_->Fill(
        [report](int64_t done, int64_t total) { return report(fleet::LoadPhase::kExperts, done, total); }));
  }
  weight_bytes_ = weights.bytes() + (experts_ == nullptr ? 0 : experts_->slot_bytes()) +
                  (placement_ == nullptr ? 0 : placement_->slot_bytes()) +
                  (in_place_ == nullptr ? 0 : in_place_->bytes());
  const int64_t context = ServedContext(config_, settings);
  moe::ExpertWeightProvider* experts = nullptr;
  if (experts_ != nullptr) experts = experts_->experts();
  if (placement_ != nullptr) experts = placement_->experts();
  if (in_place_ != nullptr) experts = in_place_->experts();
  if (options_.device.is_cpu()) shared_weights_ = std::make_unique<SharedWeights>(weights.arena);
  ASSIGN_OR_RETURN(model_, model::Model::Create(stream(), config_, dtype_, std::move(weights), context, experts));
  loaded_settings_ = settings;
  loaded_rank_ = assignment.rank;
  loaded_world_ = assignment.world;
  LogInfo("rank ", assignment.rank, " of ", assignment.world, ": ", Mib(weight_bytes_), " of ",
          ops::ToString(weight_type()), " weights ",
          options_.device.is_cpu() ? "in " : absl::StrCat("on ", options_.device.ToString(), " in "),
          absl::FormatDuration(absl::Trunc(MonotonicNow() - start, absl::Milliseconds(1))));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Worker::KvBytes(const fleet::EngineSettings& settings, int64_t context) const {
  const int64_t one_sequence = kv_bytes_per_token() * (context + settings.block_size);
  const bool cpu = options_.device.is_cpu();
  MemoryPool memory;
  if (cpu) {
    memory.available_bytes = options_.memory().available_bytes();
  } else {
    ASSIGN_OR_RETURN(memory, DeviceMemory());
  }
  int64_t available = memory.available_bytes;
  // Leaves room for maps that are fitted later.
  if (load_predictor_ != nullptr && !cpu) {
    const int64_t maps = load_predictor_->MapBytesToCome(options_.device.kind);
    available -= maps;
    absl::StrAppend(&memory.limit, ", and ", maps, " kept for the load predictor's maps");
  }
  if (const int64_t bytes = settings.kv_cache_bytes; bytes > 0) {
    if (bytes <= available) return bytes;
    return absl::ResourceExhaustedError(
        absl::StrCat("--kv_cache_bytes=", bytes, ": ", cpu ? "the machine" : "the device", " has ",
                     std::max<int64_t>(available, 0), " bytes available", cpu ? "" : " of ", memory.limit));
  }
  // Enough for every slot at full length, or the share of the memory that is left: on a device all that it may take, on
  // a host what is left once its workers have loaded, in equal parts.
  if (cpu) available = std::min(available / budget_.workers, budget_.cache_room);
  const double share = cpu ? kKvMemoryFraction : 1.0;
  const auto most = static_cast<int64_t>(share * static_cast<double>(available));
  RETURN_IF_ERROR(model::CheckKvCapacity(
      {.available = most,
       .limit = cpu ? absl::StrCat(share, " of this worker's ", available, " bytes", budget_.ToString()) : memory.limit,
       .token_bytes = kv_bytes_per_token(),
       .block_size = settings.block_size}));
  return std::min(one_sequence * settings.max_num_seqs, most);
}

absl::Status Worker::MakeRunner(const fleet::RankAssignment& assignment, const fleet::EngineSettings& settings) {
  if (runner_ != nullptr) return absl::OkStatus();
  model::RunnerOptions options;
  options.num_slots = settings.max_num_seqs;
  options.block_size = settings.block_size;
  options.kv_format = kv_format_;
  options.max_rows = settings.max_batched_tokens;
  options.context = model_->max_positions();
  options.add_outputs = settings.add_outputs;
  options.masks = &masks_;
  options.graphs =
      uses_graphs() && (placement_ == nullptr || settings.placement.mode == placement::PlacementMode::kAuto);
  options.pace = {.weights_seconds = 1e-6 * options_.experts.weights_us, .row_seconds = 1e-6 * options_.experts.row_us};
  // The cache takes what is left.
  RETURN_IF_ERROR(MakeLoadPredictor(settings));
  if (!options_.device.is_cpu()) {
    const int64_t recorded = std::min<int64_t>({model::kMaxGraphRows, options.num_slots, options.max_rows});
    // A placement's slots, whichever experts are in them.
    const moe::ExpertLayout slots = placement_ == nullptr ? layout_ : placement_->SlotsOfLayer();
    RETURN_IF_ERROR(model::WarmUp(stream(), model_.get(),
                                  {.rows = options.max_rows,
                                   .recorded_rows = options.graphs ? recorded : 0,
                                   .layout = &slots,
                                   .rank = assignment.rank}));
  }
  options.kv_cache_bytes = [&] { return KvBytes(settings, options.context); };
  options.touch_cache = settings.kv_cache_bytes > 0;  // asked for; a share of what is left is an upper bound
  ASSIGN_OR_RETURN(runner_, model::ModelRunner::Create(model_.get(), stream(), options));
  LogInfo("KV cache: ", runner_->num_blocks(), " blocks of ", options.block_size, " tokens, ",
          Mib(runner_->cache_bytes()));
  return absl::OkStatus();
}

absl::Status Worker::CaptureGraphs(absl::Duration limit, Report report) {
  if (options_.device.is_cpu()) return absl::OkStatus();
  const auto free_bytes = [this] {
    const auto now = RegisteredBackend(options_.device.kind).Describe(options_.device.index);
    return now.ok() ? now->free_bytes : 0;
  };
  const absl::Time begin = MonotonicNow();
  const int64_t free_before = free_bytes();
  absl::Time reported = begin;
  return runner_->CaptureGraphs(limit, [&](int64_t done, int64_t total) {
    const absl::Time now = MonotonicNow();
    if (done == total || now - reported >= absl::Seconds(1)) {
      reported = now;
      LogInfo("captured ", done, " of ", total, " graphs of decode steps in ",
              absl::FormatDuration(absl::Trunc(now - begin, absl::Milliseconds(1))), ", ",
              Mib(free_before - free_bytes()), " of the device's memory");
    }
    return report(fleet::LoadPhase::kGraphs, done, total);
  });
}

absl::Status Worker::SaveProfile() {
  const std::string& path = options_.forecast.profile_out;
  if (path.empty() || load_predictor_ == nullptr) return absl::OkStatus();
  return switchyard::worker::SaveProfile(stream(), *load_predictor_, loaded_rank_, path);
}

absl::Status Worker::MakeLoadPredictor(const fleet::EngineSettings& settings) {
  // It may be there already, from an assignment that was not taken in the end.
  if (load_predictor_ != nullptr || config_.num_moe_layers() == 0) return absl::OkStatus();
  // A budget's policy can use it, too, but what it gained was less than what it cost (tests/bench/offload.md).
  const bool used = options_.forecast.when == "auto" && placement::UsesEstimates(settings.placement.mode);
  if (!used && !ForecastsAnyway(options_.forecast)) return absl::OkStatus();
  ForecastOptions forecast = options_.forecast;
  if (learned_.has_value()) forecast.profile.clear();  // learned_ has the profile, and more
  std::unique_ptr<moe::RowLoadPredictor> load_predictor;
  ASSIGN_OR_RETURN(
      load_predictor,
      MakeRankLoadPredictor(
          stream(),
          {.model = model_.get(),
           .weights_hash = weights_hash_,
           .placement = settings.placement.mode,
           .available_bytes = std::min(options_.memory().available_bytes() / budget_.workers, budget_.cache_room)},
          forecast));
  if (learned_.has_value()) RETURN_IF_ERROR(load_predictor->Load(stream(), *learned_));
  if (!options_.device.is_cpu()) RETURN_IF_ERROR(load_predictor->Reserve(stream(), settings.max_batched_tokens));
  learned_.reset();
  load_predictor_ = std::move(load_predictor);
  return absl::OkStatus();
}

}  // namespace switchyard::worker
