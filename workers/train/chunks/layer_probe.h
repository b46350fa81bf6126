// Measures, on the ranks among which rows travel together and before a job's first step, how long the ops of a MoE
// layer take: all-to-alls of its ranks over bytes, experts' products over rows with the model's own weights and
// kernels, copies of activations to their file, and what all-to-alls and products lose beside each other.
//
// Sizes rise until a part has taken about 0.2 s; at least two are measured.  The slowest rank counts, so that all of
// them get the same numbers.  Takes memory for a layer's rows meanwhile.  Collective; blocks.  Source: MPMoE, section
// III-D (scheduler/PAPERS.md).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/pipeline/chunk_model.h"
#include "workers/comm/core/communicator.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/device.h"
#include "workers/train/parameters/state_file.h"

namespace switchyard::train {

struct LayerProbeInput {
  const Stream* stream = nullptr;       // on the CPU
  const model::Model* model = nullptr;  // has a MoE layer, whose experts are on the ranks of comm
  comm::Communicator* comm = nullptr;   // of at least two ranks
  int64_t rows = 0;                     // of a micro-batch, on all ranks
  OpenStateFileFn open_file = nullptr;  // makes a file of activations; null: copies are not measured
  absl::Duration limit;                 // of each collective
};

struct LayerFigures {
  pipeline::LayerTimes times;
  pipeline::LayerLoad load;
  // "all-to-all 2.1 MiB 3.5 ms, products of 2048 rows 9.1 ms, beside each other at 0.92 and 0.61 of their speeds"
  std::string text;
};

// What a rank has of a layer's rows where choices are even.
pipeline::LayerLoad LoadOf(const model::Model& model, int64_t rows, int world);

// Errors: the communicator's, the file's.
absl::StatusOr<LayerFigures> ProbeLayer(const LayerProbeInput& input);

}  // namespace switchyard::train
