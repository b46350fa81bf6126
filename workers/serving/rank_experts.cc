#include "workers/serving/rank_experts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/offload/policies/policy_kind.h"
#include "workers/model/weights/weights.h"
#include "workers/moe/experts/direct_reader.h"

namespace switchyard::worker {
namespace {

// The rates by which the policy weighs copies and experts' work; layers' other time is measured
// (workers/moe/placement/gate_cost.h).
struct Rates {
  double memory_bytes = 0;  // bytes a second, of weights that are read to compute
  double flops = 0;
  double copied_bytes = 0;  // into slots
};

// A host's memory, and a core of it; a data center GPU of today behind PCIe.
Rates RatesOf(DeviceKind device, int threads) {
  if (device == DeviceKind::kCpu) return {.memory_bytes = 10e9, .flops = 50e9 * threads, .copied_bytes = 10e9};
  return {.memory_bytes = 2e12, .flops = 200e12, .copied_bytes = 25e9};
}

// Some tens of passes: long enough for a median, soon enough for the policy to go by it.
constexpr int kMeasuredGates = 512;

// Pieces of a copy as policies count them, at most: they count one by one.
constexpr int64_t kMostChunks = 8;
constexpr int64_t kLeastStaging = 64 << 20, kMostStaging = 512 << 20;

// The nanoseconds that the amount takes.
int64_t Ticks(double amount, double per_second) {
  return std::max<int64_t>(1, static_cast<int64_t>(amount / per_second * 1e9));
}

// The bytes of the weights that a pass reads before its first gate.
int64_t BytesBeforeFirstGate(const model::ModelConfig& config, const ops::WeightType& type) {
  const auto bytes = [&](int64_t n, int64_t k, ops::WeightFormat format) {
    constexpr int64_t kSide = 32;
    return n * k / (kSide * kSide) * ops::PackedBytes({.n = kSide, .k = kSide, .dtype = type.dtype, .format = format});
  };
  int64_t all = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const ops::LayerFormats& formats = type.format.of(i);
    all += bytes(config.qkv_width(), config.hidden, formats.qkv) + bytes(config.hidden, config.q_width(), formats.o);
    if (config.layers[i].moe) break;
    all += bytes(2 * config.dense_intermediate, config.hidden, formats.dense_gate_up) +
           bytes(config.hidden, config.dense_intermediate, formats.dense_down);
  }
  return all;
}

std::unique_ptr<offload::CachePolicy> MakePolicy(const std::string& name, const offload::OffloadShape& shape,
                                                 const offload::CopyCost& cost, absl::Span<const int64_t> popularity) {
  const offload::PolicyInput input = {.shape = shape, .cost = cost, .popularity = popularity, .least_per_layer = 2};
  return offload::MakeCachePolicy(*offload::ParseExpertPolicy(name), input);
}

}  // namespace

absl::StatusOr<int> ExpertSlots(const offload::ExpertBudgetOptions& options, const model::ModelConfig& config,
                                ops::WeightType type, DeviceKind device, int64_t experts_per_layer) {
  const int64_t least = std::max<int64_t>(2, std::min(config.top_k + 1, experts_per_layer));
  if (options.automatic()) return static_cast<int>(least);
  ASSIGN_OR_RETURN(const MemoryShare share, ParseMemoryShare(options.budget));
  const int64_t expert_bytes = model::ExpertFormsOf(config, type, device).bytes();
  const int64_t all = experts_per_layer * config.num_moe_layers();
  const int64_t slots = share.PartsOf(all, expert_bytes);
  if (slots >= least) return static_cast<int>(slots);
  return absl::InvalidArgumentError(absl::StrCat("--expert_memory=", options.budget, ": holds ", slots,
                                                 " of this worker's ", all, " experts of ", expert_bytes,
                                                 " bytes; at least ", least, " must fit, a token's ", config.top_k,
                                                 " and one that is copied: ", least * expert_bytes, " bytes"));
}

absl::StatusOr<std::unique_ptr<moe::ExpertStore>> RankExperts::MakeStore(const RankExpertsInput& input, int slots,
                                                                         double* copied_bytes) {
  const Device device = input.file.device;
  const moe::ExpertFile* const file = file_.get();
  moe::ExpertStoreOptions options;
  options.expert = model::ExpertFormsOf(*input.file.config, input.file.type, device.kind);
  options.num_slots = slots;
  options.device = device;
  options.bytes_per_second = input.options.copy_bytes_per_second;
  options.chunk_bytes = file->piece_bytes();
  if (file->mapped()) {
    options.source = [file](const moe::ExpertId& id) { return file->At(id.layer, id.expert); };
  } else {
    options.slot_alignment = moe::kDirectAlignment;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertCopier> plain, CopierFrom(*file, device));
  const auto checksum = [file](const moe::ExpertId& id, int64_t offset) {
    return file->checksum_of_piece(id.layer, id.expert, offset);
  };
  auto summed = std::make_unique<moe::SummedCopier>(
      moe::SummedCopierOptions{.slots_on_host = device.is_cpu(), .checksum = checksum}, std::move(plain));
  summed_ = summed.get();
  *copied_bytes = RatesOf(device.kind, 1).copied_bytes;
  if (!file->mapped()) {
    const absl::StatusOr<double> rate = MeasureCopyRate(*file, options.expert, summed.get());
    if (summed->found_damage()) file->Discard();
    RETURN_IF_ERROR(rate.status());
    *copied_bytes = *rate;
    LogInfo("experts: ", file->path(), " gives ", static_cast<int64_t>(*rate / 1e6), " MB/s");
  }
  if (options.bytes_per_second > 0) *copied_bytes = options.bytes_per_second;
  auto copier = std::make_unique<moe::TimedCopier>(std::move(summed));
  copier_ = copier.get();
  return moe::ExpertStore::Create(std::move(options), std::move(copier));
}

absl::StatusOr<std::unique_ptr<RankExperts>> RankExperts::Open(const RankExpertsInput& input,
                                                               moe::ExpertFile::Progress progress) {
  const model::ModelConfig& config = *input.file.config;
  const Device device = input.file.device;
  const auto experts_per_layer = static_cast<int64_t>(input.experts.size());
  ASSIGN_OR_RETURN(const int slots,
                   ExpertSlots(input.options, config, input.file.type, device.kind, experts_per_layer));
  auto experts = std::unique_ptr<RankExperts>(new RankExperts());
  RankExpertFileInput file_input = input.file;
  const int64_t slot_bytes = slots * model::ExpertFormsOf(config, input.file.type, device.kind).bytes();
  if (device.is_cpu()) file_input.staging_bytes = std::clamp(slot_bytes / 2, kLeastStaging, kMostStaging);
  ASSIGN_OR_RETURN(experts->file_, OpenRankExpertFile(file_input, progress));
  double copied_bytes = 0;
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertStore> store, experts->MakeStore(input, slots, &copied_bytes));
  const int64_t expert_bytes = store->expert_bytes();
  const auto bytes = static_cast<double>(expert_bytes);
  const Rates rates = RatesOf(device.kind, input.file.num_threads);
  const int64_t piece = experts->file_->piece_bytes();
  const auto chunks = static_cast<int32_t>(std::clamp<int64_t>((expert_bytes + piece - 1) / piece, 1, kMostChunks));
  const int64_t chunk_ticks = Ticks(bytes / chunks, copied_bytes);
  moe::ExpertOffloadOptions options;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  options.experts = input.experts;
  options.token_uses = static_cast<int>(std::max<int64_t>(1, config.top_k * experts_per_layer / config.num_experts));
  for (size_t at = 0; at < input.popularity.size(); at += static_cast<size_t>(config.num_experts)) {
    for (const int32_t expert : input.experts)
      options.popularity.push_back(input.popularity[at + static_cast<size_t>(expert)]);
  }
  options.expert_ticks = Ticks(bytes, rates.memory_bytes);
  options.row_ticks = Ticks(6.0 * static_cast<double>(config.hidden * config.expert_intermediate), rates.flops);
  options.first_gate_ticks =
      Ticks(static_cast<double>(BytesBeforeFirstGate(config, input.file.type)), rates.memory_bytes);
  options.measured_gates = kMeasuredGates;
  options.make_policy = [name = input.options.policy, chunk_ticks, chunks](const offload::OffloadShape& shape,
                                                                           absl::Span<const int64_t> popularity) {
    const offload::CopyCost cost = {.copy_ticks = chunk_ticks * chunks, .chunks_per_copy = chunks};
    return MakePolicy(name, shape, cost, popularity);
  };
  ASSIGN_OR_RETURN(experts->offload_, moe::ExpertOffload::Create(std::move(options), std::move(store)));
  if (input.options.cold_on_host()) RETURN_IF_ERROR(experts->MakeCold(input, progress));
  LogInfo("experts: ", slots, " slots of ", expert_bytes >> 10, " KiB for ",
          experts_per_layer * config.num_moe_layers(), ", policy ", input.options.policy, ", from ",
          experts->file_->path(), experts->file_->built() ? " (built now)" : "");
  return experts;
}

absl::Status RankExperts::MakeCold(const RankExpertsInput& input, moe::ExpertFile::Progress progress) {
  const model::ModelConfig& config = *input.file.config;
  RankExpertFileInput file = input.file;
  file.device = Device::Cpu();
  // Panels of few bits are alike on both.
  const moe::ExpertForms form = model::ExpertFormsOf(config, file.type, DeviceKind::kCpu);
  bool alike = true;
  for (int layer = 0; layer < config.num_moe_layers(); ++layer) {
    for (const ops::WeightDesc& matrix : {form.of(layer).gate_up, form.of(layer).down})
      alike &= matrix.format != ops::WeightFormat::kPlain;
  }
  if (!alike) {
    if (file_->built()) file.available_bytes -= file_->bytes();
    ASSIGN_OR_RETURN(host_file_, OpenRankExpertFile(file, progress));
  }
  const moe::ExpertFile* const from = host_file_ != nullptr ? host_file_.get() : file_.get();
  const DeviceKind device = input.file.device.kind;
  const auto copied_bytes = static_cast<double>(model::ExpertFormsOf(config, file.type, device).bytes());
  const double link = input.options.copy_bytes_per_second;
  moe::ColdExpertsOptions options;
  options.expert = form;
  options.device = input.file.device;
  options.clamp = config.glu_clamp;
  options.source = [from](int layer, int expert) { return from->At(layer, expert); };
  options.copy_seconds = [copier = copier_, copied_bytes, link, first = RatesOf(device, 1).copied_bytes] {
    const auto copied = static_cast<double>(copier->bytes());
    double rate = copied > 0 && copier->seconds() > 0 ? copied / copier->seconds() : first;
    if (link > 0) rate = std::min(rate, link);
    return copied_bytes / rate;
  };
  options.host_seconds = [host = RatesOf(DeviceKind::kCpu, file.num_threads),
                          bytes = static_cast<double>(options.expert.bytes()),
                          flops = 6.0 * static_cast<double>(config.hidden * config.expert_intermediate)](int64_t rows) {
    return bytes / host.memory_bytes + static_cast<double>(rows) * flops / host.flops;
  };
  ASSIGN_OR_RETURN(cold_, moe::ColdExperts::Create(std::move(options), offload_.get()));
  LogInfo("experts: cold ones may run on the host, from ", from->path(),
          host_file_ != nullptr && from->built() ? " (built now)" : "");
  return absl::OkStatus();
}

absl::Status RankExperts::Fill(moe::ExpertOffload::Progress progress) {
  return offload_->Fill(MonotonicNow() + ExpertFillLimit(slot_bytes()), progress);
}

}  // namespace switchyard::worker
