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

// How many ranks get a row, at most: those with experts of its choice.  A rank alone copies none.
int64_t CopiesOfRow(const model::ModelConfig& config, const TrainingNeed& need) {
  return need.world > 1 ? std::min<int64_t>(config.top_k, need.world) : 0;
}

// Bytes of one row in one layer of SavedLayer and MoeSaved.
absl::int128 SavedRowBytes(const model::ModelConfig& config, const TrainingNeed& need, bool moe) {
  const int64_t wide = DTypeBytes(AccDType(need.dtype)), narrow = DTypeBytes(need.dtype);
  absl::int128 bytes = absl::int128(config.hidden) * wide;  // before the feed-forward
  bytes += absl::int128(config.qkv_width() + config.q_width()) * narrow;
  if (config.qk_norm != model::QkNorm::kNone || config.clip_qkv > 0) bytes += absl::int128(config.qkv_width()) * narrow;
  const auto ffn = [&](int64_t width) { return absl::int128(ops::SumsWidth(config.activation, width) + width); };
  if (!moe) return bytes + ffn(config.dense_intermediate) * narrow;
  bytes += ffn(config.shared_intermediate) * narrow;
  absl::int128 numbers = 0;
  if (need.restore.hidden == pipeline::HiddenRestore::kKeep) numbers += config.top_k * ffn(config.expert_intermediate);
  if (need.restore.input == pipeline::InputRestore::kKeep) {
    numbers += absl::int128(config.hidden) * CopiesOfRow(config, need);
  }
  return bytes + numbers * narrow;
}

// Bytes of one row that a MoE layer puts into a file.
absl::int128 OffloadedRowBytes(const model::ModelConfig& config, const TrainingNeed& need) {
  absl::int128 numbers = 0;
  if (need.restore.hidden == pipeline::HiddenRestore::kOffload) {
    const int64_t inside = ops::SumsWidth(config.activation, config.expert_intermediate) + config.expert_intermediate;
    numbers += absl::int128(config.top_k) * inside;
  }
  if (need.restore.input == pipeline::InputRestore::kOffload) {
    numbers += absl::int128(config.hidden) * CopiesOfRow(config, need);
  }
  return numbers * DTypeBytes(need.dtype) * 5 / 4;  // with the room of activation_file.h
}

// What experts need on a rank.
struct ExpertBytes {
  absl::int128 weights = 0, parameters = 0, offloaded = 0;  // as in TrainingBytes
};

// Of a rank with the experts [first, first + count) of each layer.
ExpertBytes BytesOfExperts(const model::ModelConfig& config, const TrainingNeed& need, int64_t first, int64_t count) {
  const auto of_all = [&](DType dtype) {
    return model::WeightBytes(config, dtype, count) - model::WeightBytes(config, dtype, 0);
  };
  ExpertBytes bytes = {.weights = 2 * of_all(need.dtype)};
  const DType wide = AccDType(need.dtype);
  if (need.frozen.adapters > 0) {
    bytes.weights += 2 * DTypeBytes(need.dtype) * count * need.frozen.adapters_of_expert;
    bytes.parameters = 4 * DTypeBytes(wide) * count * need.frozen.adapters_of_expert;
    return bytes;
  }
  bytes.parameters = 4 * of_all(wide);
  if (need.offload) {
    const int64_t layers = std::max<int64_t>(1, config.num_moe_layers());
    bytes.offloaded = 3 * of_all(wide);
    bytes.parameters -= bytes.offloaded - bytes.offloaded * std::min<int64_t>(layers, 2) / layers;  // state_offload.h
  }
  const std::vector<absl::int128>& frozen = need.frozen.of_expert;
  if (first + count > static_cast<int64_t>(frozen.size())) return bytes;
  const auto begin = frozen.begin() + first;
  const absl::int128 numbers = std::accumulate(begin, begin + count, absl::int128(0));
  // (A file has room for their moments.)
  bytes.parameters -= (need.offload ? 1 : 3) * DTypeBytes(wide) * numbers;
  return bytes;
}

// Of the rank whose experts need the most: those with one expert less may have fewer that are frozen.  Ranks have
// neighbouring experts, the first ones those with one more (expert_groups.h).
ExpertBytes MostBytesOfExperts(const model::ModelConfig& config, const TrainingNeed& need) {
  const int64_t n = need.experts_per_layer, all = static_cast<int64_t>(need.frozen.of_expert.size());
  ExpertBytes most = BytesOfExperts(config, need, 0, n);
  const auto consider = [&](int64_t first, int64_t count) {
    ExpertBytes bytes = BytesOfExperts(config, need, first, count);
    bytes.offloaded = most.offloaded;  // the most experts have the largest file, frozen or not
    if (bytes.weights + bytes.parameters > most.weights + most.parameters) most = bytes;
  };
  int64_t first = 0;
  for (int64_t r = 0; n > 0 && first + n <= all && (need.full_ranks == 0 || r < need.full_ranks); ++r, first += n) {
    consider(first, n);
  }
  if (need.full_ranks == 0 || n < 2) return most;
  for (; first + n - 1 <= all; first += n - 1) consider(first, n - 1);
  return most;
}

}  // namespace

TrainingBytes TrainingMemory(const model::ModelConfig& config, const TrainingNeed& need) {
  const int64_t wide = DTypeBytes(AccDType(need.dtype));
  const ExpertBytes experts = MostBytesOfExperts(config, need);
  TrainingBytes bytes;
  // (Tables have no transposes.  Vectors have none either, but are so small that they may count twice.)
  const absl::int128 table_rows =
      absl::int128(model::HasEmbedding(config, ops::WeightFormat::kPlain) ? config.vocab_size : 0) +
      (config.learned_positions ? config.context : 0);
  bytes.weights = 2 * model::WeightBytes(config, need.dtype, 0) + experts.weights;
  bytes.weights -= table_rows * config.hidden * DTypeBytes(need.dtype);
  if (need.frozen.adapters > 0) {
    const absl::int128 dense = need.frozen.adapters - config.num_experts * need.frozen.adapters_of_expert;
    bytes.weights += 2 * DTypeBytes(need.dtype) * dense;
    bytes.parameters = 4 * wide * dense + experts.parameters;
  } else {
    // The gradients, all of which are everywhere, and this rank's part of masters and moments (dense_shards.h).
    const absl::int128 dense = model::WeightBytes(config, AccDType(need.dtype), 0);
    bytes.parameters = dense + 3 * dense / need.dense_shards + experts.parameters;
    bytes.parameters -= wide * (need.frozen.dense + 2 * need.frozen.dense / need.dense_shards);
  }
  bytes.parameters += absl::int128(need.gathered_rows) * config.hidden * wide;
  bytes.experts = experts.weights + experts.parameters;
  bytes.offloaded = experts.offloaded;
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
    if (!need.recompute && need.restore.input == pipeline::InputRestore::kKeep && need.world > 1)
      ways.push_back("restore_input");
    if (!need.recompute && need.restore.hidden == pipeline::HiddenRestore::kKeep) ways.push_back("restore_hidden");
    return absl::StrCat("most are activations: ", absl::StrJoin(ways, " or "), " makes them fewer");
  }
  if (bytes.experts >= everywhere) {
    const std::string way =
        choices.world < config.num_experts
            ? absl::StrFormat("more workers than %d share them", choices.world)
            : absl::StrFormat("workers with more memory are needed, as each of %d has one of a layer already",
                              choices.world);
    return absl::StrFormat("most are experts', %d bytes: %s%s", bytes.experts,
                           need.offload || need.frozen.adapters > 0 ? "" : absl::StrCat(file, "; "), way);
  }
  const std::string most = absl::StrFormat("most are parameters that every worker has, %d bytes: ", everywhere);
  std::string zero;
  if (need.dense_shards == 1 && choices.world > 1 && need.frozen.adapters == 0) {
    TrainingNeed sharded = need;
    sharded.dense_shards = choices.world;
    const TrainingBytes with = TrainingMemory(config, sharded);
    zero =
        absl::StrFormat("zero=1, with which each has %d bytes less of them, is ", bytes.parameters - with.parameters);
    if (with.total() <= available_bytes) return absl::StrCat(most, zero, "enough");
    zero += "not enough; ";
  }
  const std::string apart =
      choices.ranks_here > 1
          ? absl::StrFormat(", or fewer of them on a machine (%d share this one's)", choices.ranks_here)
          : "";
  return absl::StrCat(most, zero, "workers with more memory are needed", apart);
}

}  // namespace switchyard::train
