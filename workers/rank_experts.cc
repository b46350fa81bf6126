#include "workers/rank_experts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/offload/expected_use_policy.h"
#include "scheduler/offload/rule_policy.h"
#include "workers/model/dummy_weights.h"
#include "workers/model/loader.h"

namespace switchyard {
namespace {

constexpr absl::Duration kFillLimit = absl::Minutes(10);  // of all slots at the start
// What the policy weighs by where nothing is measured: what a host's memory gives, and what one core multiplies.
constexpr double kMemoryBytesPerSecond = 10e9;
constexpr double kFlopsPerSecond = 50e9;
constexpr int32_t kChunksPerCopy = 4;

PackedExpert PackedOf(const ModelConfig& config, DType dtype) {
  return {config.hidden, config.expert_intermediate, dtype, DeviceKind::kCpu};
}

// Nanoseconds.
int64_t Ticks(double amount, double per_second) {
  return std::max<int64_t>(1, static_cast<int64_t>(amount / per_second * 1e9));
}

std::unique_ptr<CachePolicy> MakePolicy(const std::string& name, const OffloadShape& shape, const CopyCost& cost) {
  // Without a profile all are as popular.
  const std::vector<int64_t> popularity(static_cast<size_t>(shape.num_keys()), 1);
  if (const std::optional<RulePolicy::Rule> rule = *ParseExpertPolicy(name); rule.has_value()) {
    const RulePolicy::Options options = {.rule = *rule, .per_layer = shape.num_slots >= 2 * shape.num_layers};
    return std::make_unique<RulePolicy>(shape, options, popularity);
  }
  return std::make_unique<ExpectedUsePolicy>(shape, cost, ExpectedUsePolicy::Options{}, popularity);
}

absl::StatusOr<std::unique_ptr<ExpertFile>> OpenFile(const RankExpertsInput& input, const PackedExpert& packed,
                                                     absl::AnyInvocable<bool(int64_t, int64_t)>* progress) {
  const ModelConfig& config = *input.config;
  ExpertFileOptions options;
  options.dir = input.options.file_dir;
  options.weights = input.weights;
  options.expert = packed;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  options.num_experts = static_cast<int>(config.num_experts);
  options.available_bytes = input.available_bytes;
  const auto tell = [&](int64_t done, int64_t total) { return *progress == nullptr || (*progress)(done, total); };
  const auto fill = [&](ExpertFile::Places* places) {
    LoadOptions load;
    load.dtype = input.dtype;
    load.residents.resize(static_cast<size_t>(config.num_experts));
    std::iota(load.residents.begin(), load.residents.end(), 0);
    load.num_threads = input.num_threads;
    load.progress = [&](int64_t done, int64_t total) {
      places->Report(done);
      return tell(done, total);
    };
    const auto place = [&](int layer, int32_t expert) { return places->At(layer, expert); };
    if (input.checkpoint == nullptr) return MakeDummyExperts(config, std::move(load), place);
    return LoadExperts(*input.checkpoint, config, std::move(load), place);
  };
  absl::StatusOr<std::unique_ptr<ExpertFile>> file = ExpertFile::Open(options, fill, tell);
  // Not the network's or another worker's fault: with this directory it would be the same again.
  if (absl::IsUnavailable(file.status()) || absl::IsPermissionDenied(file.status())) {
    return absl::InvalidArgumentError(absl::StrCat("--expert_file_dir=", options.dir, ": ", file.status().message()));
  }
  return file;
}

}  // namespace

absl::StatusOr<int> ExpertSlots(const ExpertBudgetOptions& options, const ModelConfig& config, DType dtype,
                                int64_t num_residents) {
  ASSIGN_OR_RETURN(const MemoryShare share, ParseMemoryShare(options.budget));
  const int64_t expert_bytes = PackedOf(config, dtype).bytes;
  const int64_t all = num_residents * config.num_moe_layers();
  const int64_t slots = share.PartsOf(all, expert_bytes);
  const int64_t least = std::max<int64_t>(2, std::min(config.top_k + 1, num_residents));
  if (slots >= least) return static_cast<int>(slots);
  return absl::InvalidArgumentError(absl::StrCat("--expert_budget=", options.budget, ": holds ", slots,
                                                 " of this worker's ", all, " experts of ", expert_bytes,
                                                 " bytes; at least ", least, " must fit, a token's ", config.top_k,
                                                 " and one that is copied: ", least * expert_bytes, " bytes"));
}

absl::StatusOr<std::unique_ptr<RankExperts>> RankExperts::Open(const RankExpertsInput& input,
                                                               absl::AnyInvocable<bool(int64_t, int64_t)> progress) {
  const ModelConfig& config = *input.config;
  const PackedExpert packed = PackedOf(config, input.dtype);
  ASSIGN_OR_RETURN(const int slots,
                   ExpertSlots(input.options, config, input.dtype, static_cast<int64_t>(input.residents.size())));
  auto experts = std::unique_ptr<RankExperts>(new RankExperts());
  ASSIGN_OR_RETURN(experts->file_, OpenFile(input, packed, &progress));
  ExpertStoreOptions store_options;
  store_options.expert = packed;
  store_options.num_slots = slots;
  store_options.bytes_per_second = input.options.copy_bytes_per_second;
  store_options.chunk_bytes = std::min<int64_t>(store_options.chunk_bytes, packed.bytes / kChunksPerCopy);
  store_options.source = [file = experts->file_.get()](const ExpertId& id) { return file->At(id.layer, id.expert); };
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertStore> store,
                   ExpertStore::Create(store_options, std::make_unique<HostExpertCopier>()));
  const auto bytes = static_cast<double>(packed.bytes);
  const double rate = store_options.bytes_per_second > 0 ? store_options.bytes_per_second : kMemoryBytesPerSecond;
  const int64_t chunk_ticks = Ticks(bytes / kChunksPerCopy, rate);
  ExpertOffloadOptions options;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  options.residents = input.residents;
  options.expert_ticks = Ticks(bytes, kMemoryBytesPerSecond);
  options.row_ticks =
      Ticks(6.0 * static_cast<double>(config.hidden * config.expert_intermediate), kFlopsPerSecond * input.num_threads);
  options.make_policy = [name = input.options.policy, chunk_ticks](const OffloadShape& shape) {
    return MakePolicy(name, shape, {.copy_ticks = chunk_ticks * kChunksPerCopy, .chunks_per_copy = kChunksPerCopy});
  };
  ASSIGN_OR_RETURN(experts->offload_,
                   ExpertOffload::Create(std::move(options), std::move(store), absl::Now() + kFillLimit));
  LogInfo("experts: ", slots, " slots of ", packed.bytes >> 10, " KiB for ",
          input.residents.size() * static_cast<size_t>(config.num_moe_layers()), ", policy ", input.options.policy,
          ", from ", experts->file_->path(), experts->file_->built() ? " (built now)" : "");
  return experts;
}

}  // namespace switchyard
