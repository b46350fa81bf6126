#include "workers/train/step/trainer_options.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/reduce_policy.h"
#include "scheduler/jobs/trainer_limits.h"

namespace switchyard::train {
namespace {

// The limits of the check of a submitted spec, as a trainer can be made without a spec.
absl::Status CheckNumbers(const TrainerOptions& options) {
  RETURN_IF_ERROR(jobs::CheckReal("trainer: beta1", options.optimizer.beta1, jobs::kBetas));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: beta2", options.optimizer.beta2, jobs::kBetas));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: epsilon", options.optimizer.epsilon, jobs::kEpsilons));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: weight_decay", options.optimizer.weight_decay, jobs::kWeightDecays));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: clip_norm", options.optimizer.clip_norm, jobs::kClipNorms));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: balance_weight", options.router.balance_weight, jobs::kRouterLossWeights));
  RETURN_IF_ERROR(
      jobs::CheckReal("trainer: capacity_factor", options.capacity_factor, {0, jobs::kCapacityFactorLimit}));
  RETURN_IF_ERROR(jobs::CheckReal("trainer: balance_bias_rate", options.balance_bias_rate, jobs::kBalanceBiasRates));
  for (const double rate : {options.noise.embedding, options.noise.hidden, options.noise.attention,
                            options.noise.router_jitter, options.noise.adapters}) {
    RETURN_IF_ERROR(jobs::CheckReal("trainer: a rate of dropout or jitter", rate, jobs::kNoiseRates));
  }
  return jobs::CheckReal("trainer: z_weight", options.router.z_weight, jobs::kRouterLossWeights);
}

absl::Status CheckPacked(const TrainRows& rows, int64_t begin, int64_t end) {
  if (end - begin <= rows.length) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("trainer: a document at token ", begin, " of ", end - begin,
                                                 " tokens, at most ", rows.length, " are allowed"));
}

absl::Status CheckBorders(const TrainerOptions& options, const TrainRows& rows) {
  if (rows.packed && !options.document_mask) {
    return absl::InvalidArgumentError("trainer: packed rows, but document_mask is off");
  }
  if (!rows.borders.empty() && !options.document_mask) {
    return absl::InvalidArgumentError(
        absl::StrCat("trainer: ", rows.borders.size(), " borders of documents, but document_mask is off"));
  }
  int64_t before = -1;
  for (const int32_t border : rows.borders) {
    if (border <= before || border >= static_cast<int64_t>(rows.tokens.size())) {
      return absl::InvalidArgumentError(absl::StrCat("trainer: a border at token ", border, " of ", rows.tokens.size(),
                                                     ", the one before at ", before));
    }
    if (rows.packed) RETURN_IF_ERROR(CheckPacked(rows, std::max<int64_t>(before, 0), border));
    before = border;
  }
  return rows.packed ? CheckPacked(rows, std::max<int64_t>(before, 0), static_cast<int64_t>(rows.tokens.size()))
                     : absl::OkStatus();
}

}  // namespace

absl::Status CheckTrainerOptions(const TrainerOptions& options, const model::Model& model) {
  if (options.restore.offloads() && options.open_activations == nullptr) {
    return absl::FailedPreconditionError(
        "restore: offload, but this worker has no --train_offload_dir for rows that backward needs");
  }
  if (options.max_length < 1 || options.max_length > model.max_positions()) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: sequences of ", options.max_length,
                                                   " tokens are outside [1, ", model.max_positions(), "]"));
  }
  if (options.max_sequences < 1 || options.max_sequences > jobs::kMaxMicroBatchRows / options.max_length) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: micro-batches of ", options.max_sequences,
                                                   " sequences of ", options.max_length, " tokens are outside [1, ",
                                                   jobs::kMaxMicroBatchRows, "] rows"));
  }
  RETURN_IF_ERROR(CheckNumbers(options));
  if (options.balance_bias_rate > 0 && !model.config().router_bias) {
    return absl::InvalidArgumentError(absl::StrCat("trainer: balance_bias_rate is ", options.balance_bias_rate,
                                                   ", but ", model.config().architecture,
                                                   "'s routers have no bias here"));
  }
  return jobs::ReducePolicyOf(options.communication).status();
}

absl::Status CheckMicroBatches(const TrainerOptions& options, int64_t vocab_size,
                               absl::Span<const TrainRows> micro_batches) {
  for (const TrainRows& rows : micro_batches) {
    const auto num_rows = static_cast<int64_t>(rows.tokens.size());
    if (num_rows == 0 && rows.targets.empty()) continue;
    if (rows.length < 1 || rows.length > options.max_length || (!rows.packed && num_rows % rows.length != 0) ||
        num_rows > options.max_sequences * rows.length || rows.targets.size() != rows.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "trainer: a micro-batch of ", num_rows, " tokens and ", rows.targets.size(), " targets in sequences of ",
          rows.length, "; the limits are ", options.max_sequences, " sequences of ", options.max_length));
    }
    RETURN_IF_ERROR(CheckBorders(options, rows));
    for (size_t i = 0; i < rows.tokens.size(); ++i) {
      if (rows.tokens[i] < 0 || rows.tokens[i] >= vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("trainer: tokens[", i, "] = ", rows.tokens[i], " is outside [0, ", vocab_size, ")"));
      }
      if (rows.targets[i] >= vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("trainer: targets[", i, "] = ", rows.targets[i], " is outside [0, ", vocab_size, ")"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPairs(absl::Span<const TrainRows> micro_batches, bool referred) {
  for (const TrainRows& rows : micro_batches) {
    const size_t documents = rows.tokens.empty() ? 0 : rows.borders.size() + 1;
    if (!rows.packed && documents > 0)
      return absl::InvalidArgumentError("trainer: pairs of answers that are not packed");
    if (documents != 2 * rows.pairs.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("trainer: ", documents, " documents of ", rows.pairs.size(), " pairs of answers"));
    }
    const bool missing = std::any_of(rows.references.begin(), rows.references.end(), [](const PairLogProbs& pair) {
      return !std::isfinite(pair.chosen) || !std::isfinite(pair.rejected);
    });
    if (referred && missing) {
      return absl::InvalidArgumentError("trainer: log probabilities of the reference are missing, or not finite");
    }
    if (referred && rows.references.size() != rows.pairs.size()) {
      return absl::InvalidArgumentError(absl::StrCat("trainer: log probabilities of the reference for ",
                                                     rows.references.size(), " of ", rows.pairs.size(),
                                                     " pairs of answers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
