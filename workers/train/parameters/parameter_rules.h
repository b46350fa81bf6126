// The rules of a job's parameters (JobSpec.parameters): which weights are trained, and with which learning rate and
// decay.
//
// A rule's pattern is compared with the whole name that a weight has in a checkpoint of the job: of the base's weights,
// one tensor an expert, or, in a job with lora, of the adapters alone, by PEFT's names.  Pure.
#pragma once

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

// How many numbers of a model are trained or not, over all layers.
struct TrainedElements {
  absl::int128 frozen_dense = 0, frozen_experts = 0;  // of the base: what every rank has, and all experts
  absl::int128 adapters = 0;                          // with them all of the base is frozen
};

// Checks the rules against the names of a model's weights, of all experts.  InvalidArgument: 'parameters[1]: "*.foo.*"
// fits no weight; …', or that no weight is left to train.
absl::StatusOr<TrainedElements> CountTrained(const jobs::JobSpec& spec, const model::ModelConfig& config);

}  // namespace switchyard::train
