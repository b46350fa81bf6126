// The rates of a job's dropout and router jitter: those of its spec, else those of the model's config.json.
#pragma once

#include <string>

#include "scheduler/jobs/job_spec.h"
#include "workers/model/config/config.h"
#include "workers/model/forward/training_noise.h"

namespace switchyard::train {

// Sets the rates that the spec does not say to config.json's.  Returns those that are not 0, and whose they are:
// "dropout: hidden 0.1, attention 0.3 (config.json: attention_dropout)"; empty: there are none, here or in config.json.
std::string FillNoise(const model::TrainingConfig& config, jobs::JobSpec* spec);

// REQUIRES: FillNoise.
model::NoiseRates NoiseRatesOf(const jobs::JobSpec& spec);

}  // namespace switchyard::train
