// A worker's load predictor: whether it has one, made of its model, and what it begins with.
//
// Thread-compatible: the worker's thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/placement/placement_mode.h"
#include "scheduler/popularity/profile_bundle.h"
#include "workers/model/forward/model.h"
#include "workers/moe/popularity/row_load_predictor.h"
#include "workers/tensor/device.h"

namespace switchyard::worker {

struct ForecastOptions {
  // "auto": for the paper's modes that ask for what coming layers get, or where a profile is read or written; always;
  // never.
  std::string when = "auto";
  std::string profile = {};  // file of a ProfileBundle to begin with; empty: nothing is known at first
  // Where what was learned is written when the worker ends; empty: nowhere.  Rank 0 writes what it loaded, too, the
  // others what they have learned since: so the merged files count it once.  Probes are then fitted on every row,
  // whatever time that takes.
  std::string profile_out = {};
  int path_length = popularity::kLivePathLength;  // l: of how many layers the paths are that are counted and asked
};

// The model whose rows are forecast, and what the forecasts are for.
struct ForecastedModel {
  const model::Model* model;
  std::string weights_hash;
  placement::PlacementMode placement;  // one of the paper's (IsPaper): estimates are Lina's, else the best
  int64_t available_bytes;             // memory that is free, for the sums of a profile_out's fits
};

// Whether there is a load predictor whatever the placement.
inline bool ForecastsAnyway(const ForecastOptions& options) {
  return options.when == "always" ||
         (options.when == "auto" && (!options.profile.empty() || !options.profile_out.empty()));
}

// InvalidArgument: an option that cannot be, named as the flag.
absl::Status CheckForecastOptions(const ForecastOptions& options);

// The bundle of --profile, of these weights and the options' path length.  InvalidArgument: it cannot be read, or is of
// others, which are named.
absl::StatusOr<popularity::ProfileBundle> ReadProfile(const ForecastOptions& options, const std::string& weights_hash);

// Writes what the load predictor has learned, rank 0 with what it had loaded; whole or not at all.  Blocks: solves the
// fits as they are.  InvalidArgument: the file, with the reason.  REQUIRES: MakeRankLoadPredictor made it, for options
// with a profile_out.
absl::Status SaveProfile(const Stream& stream, const moe::RowLoadPredictor& load_predictor, int rank,
                         const std::string& path);

// Makes the load predictor of the model's MoE layers, on the stream's device.  Errors: ReadProfile's; InvalidArgument:
// more experts than a profile can name; ResourceExhausted: what a profile_out's fits take and what is free.  REQUIRES:
// the model has MoE layers and outlives it.
absl::StatusOr<std::unique_ptr<moe::RowLoadPredictor>> MakeRankLoadPredictor(const Stream& stream,
                                                                             const ForecastedModel& forecasted,
                                                                             const ForecastOptions& options);

}  // namespace switchyard::worker
