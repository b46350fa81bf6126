// The rates of a job's dropout and router jitter: those of its spec, else those of the model's config.json.
#pragma once

#include <string>

#include "scheduler/jobs/job_spec.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/training_noise.h"

namespace switchyard::train {

// Sets the rates that the spec does not say to config.json's.  Returns those that hold and are not 0, and those that
// the spec sets to 0 where config.json has another one, with config.json's key: "dropout: hidden 0.1, attention 0.3
// (config.json: attention_dropout), router jitter 0 (config.json: router_jitter_noise 0.1)".  Empty: spec and
// config.json have no rate but 0.
std::string FillNoise(const model::TrainingConfig& config, jobs::JobSpec* spec);

// REQUIRES: FillNoise.
model::NoiseRates NoiseRatesOf(const jobs::JobSpec& spec);

}  // namespace switchyard::train
