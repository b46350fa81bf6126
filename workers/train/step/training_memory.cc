#include "workers/train/step/training_memory.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "workers/model/config/memory_plan.h"

namespace switchyard::train {
namespace {

// Bytes of one row in one layer of SavedLayer and MoeSaved.
absl::int128 SavedRowBytes(const model::ModelConfig& config, const TrainingNeed& need, bool moe) {
  const int64_t wide = DTypeBytes(AccDType(need.dtype)), narrow = DTypeBytes(need.dtype);
  absl::int128 bytes = absl::int128(config.hidden) * wide;  // before the feed-forward
  bytes += absl::int128(config.qkv_width() + config.q_width()) * narrow;
  if (config.qk_norm != model::QkNorm::kNone || config.clip_qkv > 0) bytes += absl::int128(config.qkv_width()) * narrow;
  const auto ffn = [&](int64_t width) { return absl::int128(ops::SumsWidth(config.activation, width) + width); };
  if (!moe) return bytes + ffn(config.dense_intermediate) * narrow;
  bytes += ffn(config.shared_intermediate) * narrow;
  absl::int128 pair = 0;
  if (need.restore.hidden == pipeline::HiddenRestore::kKeep) pair += ffn(config.expert_intermediate);
  if (need.restore.input == pipeline::InputRestore::kKeep) pair += config.hidden;
  return bytes + config.top_k * pair * narrow;
}

// Bytes of one row that a MoE layer puts into a file.
absl::int128 OffloadedRowBytes(const model::ModelConfig& config, const TrainingNeed& need) {
  absl::int128 numbers = 0;
  if (need.restore.hidden == pipeline::HiddenRestore::kOffload) {
    const int64_t inside = ops::SumsWidth(config.activation, config.expert_intermediate) + config.expert_intermediate;
    numbers += absl::int128(config.top_k) * inside;
  }
  // A row goes to as many ranks as have experts of its choice; a rank alone copies none.
  if (need.restore.input == pipeline::InputRestore::kOffload && need.world > 1)
    numbers += absl::int128(config.hidden) * std::min<int64_t>(config.top_k, need.world);
  return numbers * DTypeBytes(need.dtype) * 5 / 4;  // with the room of activation_file.h
}

// The fewest numbers of a rank's experts that are frozen; the i-th rank with n experts has [i n, (i + 1) n) of each
// layer (expert_groups.h).
absl::int128 FewestFrozen(const std::vector<absl::int128>& of_expert, int64_t n, int64_t full_ranks) {
  if (n <= 0 || static_cast<int64_t>(of_expert.size()) < n) return 0;
  const auto ranks = static_cast<int64_t>(of_expert.size()) / n;
  absl::int128 fewest = std::numeric_limits<absl::int128>::max();
  for (int64_t r = 0; r < (full_ranks == 0 ? ranks : std::min(ranks, full_ranks)); ++r) {
    const auto first = of_expert.begin() + r * n;
    fewest = std::min(fewest, std::accumulate(first, first + n, absl::int128(0)));
  }
  return fewest;
}

// Subtracts what frozen parameters do not need.
void SubtractFrozen(const model::ModelConfig& config, const TrainingNeed& need, TrainingBytes* bytes) {
  const int64_t wide = DTypeBytes(AccDType(need.dtype));
  if (need.frozen.adapters > 0) {
    bytes->parameters = 4 * wide * need.frozen.adapters;
    bytes->weights += 2 * DTypeBytes(need.dtype) * need.frozen.adapters;
    bytes->experts = 2 * (model::WeightBytes(config, need.dtype, need.experts_per_layer) -
                          model::WeightBytes(config, need.dtype, 0));
    bytes->offloaded = 0;
    return;
  }
  const absl::int128 experts = FewestFrozen(need.frozen.of_expert, need.experts_per_layer, need.full_ranks);
  // (A file has room for their moments.)
  const absl::int128 of_experts = (need.offload ? 1 : 3) * wide * experts;
  // (The gradient, and this rank's part of the moments.)
  const absl::int128 of_dense = need.frozen.dense + 2 * need.frozen.dense / need.dense_shares;
  bytes->parameters -= wide * of_dense + of_experts;
  bytes->experts -= of_experts;
}

}  // namespace

TrainingBytes TrainingMemory(const model::ModelConfig& config, const TrainingNeed& need) {
  TrainingBytes bytes;
  bytes.weights = 2 * model::WeightBytes(config, need.dtype, need.experts_per_layer);
  bytes.parameters = 4 * model::WeightBytes(config, AccDType(need.dtype), need.experts_per_layer);
  const auto of_experts = [&](DType dtype) {
    return model::WeightBytes(config, dtype, need.experts_per_layer) - model::WeightBytes(config, dtype, 0);
  };
  const absl::int128 experts = of_experts(AccDType(need.dtype));
  bytes.experts = 2 * of_experts(need.dtype) + 4 * experts;
  if (need.offload) {
    const int64_t layers = std::max<int64_t>(1, config.num_moe_layers());
    bytes.offloaded = 3 * experts;
    const absl::int128 saved = bytes.offloaded - bytes.offloaded * std::min<int64_t>(layers, 2) / layers;
    bytes.parameters -= saved;  // state_offload.h
    bytes.experts -= saved;
  }
  // Of masters and moments (dense_shards.h); all of the gradients is everywhere.
  const absl::int128 dense = 3 * model::WeightBytes(config, AccDType(need.dtype), 0);
  bytes.parameters -= dense - dense / need.dense_shares;
  SubtractFrozen(config, need, &bytes);
  absl::int128 row = model::KvBytesPerToken(config, need.dtype);
  absl::int128 largest = 0;
  for (const model::LayerConfig& layer : config.layers) {
    const absl::int128 saved = SavedRowBytes(config, need, layer.moe);
    row += absl::int128(config.hidden) * DTypeBytes(AccDType(need.dtype));  // before the layer
    if (!need.recompute) row += saved;
    largest = std::max(largest, saved);
  }
  if (need.recompute) row += largest;
  bytes.activations = need.rows * row;
  bytes.offloaded_activations = need.rows * config.num_moe_layers() * OffloadedRowBytes(config, need);
  return bytes;
}

absl::Status CheckTrainingMemory(const model::ModelConfig& config, const TrainingNeed& need, int64_t available_bytes) {
  const TrainingBytes bytes = TrainingMemory(config, need);
  if (bytes.total() <= available_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("training needs at least %d bytes (weights in %s with %d experts a layer %d, masters, gradients "
                      "and moments %d%s, "
                      "activations of %d rows %d), the worker has %d bytes available",
                      bytes.total(), DTypeName(need.dtype), need.experts_per_layer, bytes.weights, bytes.parameters,
                      need.offload ? absl::StrFormat(" beside %d in a file", bytes.offloaded) : "", need.rows,
                      bytes.activations, std::max<int64_t>(available_bytes, 0)));
}

std::string MemoryRemedy(const model::ModelConfig& config, const TrainingNeed& need, const MemoryChoices& choices,
                         int64_t available_bytes) {
  const TrainingBytes bytes = TrainingMemory(config, need);
  TrainingNeed in_file = need;
  in_file.offload = true;
  const TrainingBytes with_file = TrainingMemory(config, in_file);
  const std::string file =
      absl::StrFormat("%s, with which masters and moments of experts, %d bytes, are in a file",
                      choices.offload == jobs::OffloadPolicy::kNever ? "offload is never, not auto"
                                                                     : "this worker has no --train_offload_dir",
                      with_file.offloaded);
  if (!need.offload && with_file.total() <= available_bytes) return file;
  const absl::int128 everywhere = bytes.weights + bytes.parameters - bytes.experts;
  if (bytes.activations >= std::max(bytes.experts, everywhere)) {
    const std::string fewer = choices.micro_batch_sequences > 1 ? absl::StrCat("a lower micro_batch_sequences (now ",
                                                                               choices.micro_batch_sequences, ")")
                                                                : "a lower sequence_length";
    std::vector<std::string> ways = {fewer};
    if (!need.recompute && need.restore.keeps_all()) ways.push_back("recompute");
    if (!need.recompute && need.restore.input == pipeline::InputRestore::kKeep) ways.push_back("restore_input");
    if (!need.recompute && need.restore.hidden == pipeline::HiddenRestore::kKeep) ways.push_back("restore_hidden");
    return absl::StrCat("most are activations: ", absl::StrJoin(ways, " or "), " makes them fewer");
  }
  if (bytes.experts >= everywhere) {
    return absl::StrFormat("most are experts', %d bytes: %smore workers than %d share them", bytes.experts,
                           need.offload || need.frozen.adapters > 0 ? "" : absl::StrCat(file, "; "), choices.world);
  }
  TrainingNeed shared = need;
  shared.dense_shares = choices.world;
  const std::string zero = need.dense_shares == 1 && choices.world > 1 && need.frozen.adapters == 0
                               ? absl::StrFormat("zero=1, with which each has %d bytes less of them, or ",
                                                 bytes.parameters - TrainingMemory(config, shared).parameters)
                               : "";
  const std::string apart =
      choices.ranks_here > 1
          ? absl::StrFormat(", or fewer of them on a machine (%d share this one's)", choices.ranks_here)
          : "";
  return absl::StrFormat("most are parameters that every worker has, %d bytes: %sworkers with more memory are needed%s",
                         everywhere, zero, apart);
}

}  // namespace switchyard::train
