// The rules of a job's parameters (JobSpec.parameters): which weights are trained, and with which learning rate and
// decay.
//
// A rule's pattern is compared with the whole name that a weight has in a checkpoint of the job: of the base's weights,
// one tensor an expert, or, in a job with lora, of the adapters alone, by PEFT's names.  Pure.
#pragma once

#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/model/config/config.h"
#include "workers/model/weights/adapters.h"

namespace switchyard::train {

// Whether all of the name fits; * is any characters, also none.
bool FitsPattern(absl::string_view pattern, absl::string_view name);

// The first rule that fits the name; null: none.
const jobs::ParameterRule* RuleFor(absl::Span<const jobs::ParameterRule> rules, absl::string_view name);

// The adapters that a job has; rank 0: none.
model::AdapterDesc AdaptersOf(const jobs::LoraSpec& lora);

// How many numbers of a model, over all layers, have neither a gradient nor moments, and how many are adapters'.  A
// frozen part of a packed weight (parameters.h) has both where another part is trained, so it does not count.
struct FrozenElements {
  absl::int128 dense = 0;                    // of the base: of what every rank has
  std::vector<absl::int128> of_expert = {};  // likewise of each expert, by its number; empty: nothing of any
  absl::int128 adapters = 0;                 // with them all of the base is frozen
  absl::int128 adapters_of_expert = 0;       // of `adapters`, those of each expert
  absl::int128 OfBase() const;               // dense and all experts
};

// Checks the rules against the names of a model's weights, of all experts.  InvalidArgument: 'parameters[1]: "*.foo.*"
// fits no weight; …' or 'holds for no weight: …', that no weight is left to train, or no bias that balance_bias_rate
// would move.
absl::StatusOr<FrozenElements> CountFrozen(const jobs::JobSpec& spec, const model::ModelConfig& config);

}  // namespace switchyard::train
