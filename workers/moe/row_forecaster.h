// A forecaster of this rank's rows: prefill and decode each by the best of their live estimators
// (scheduler/popularity/live_estimates.h), told by the coming layers' own gates on the current rows and, where a map is
// fitted, by the probe (gate_forecast.h).
//
// Per gate: the rows' choices are kept, scored and counted; then for the layers one and two ahead the products that an
// estimator of this pass reads are run, [T, H] x [H, E] each, and what the best one says of both phases is added.  Few
// passes run all of them (LiveOptions).  A phase without an estimate takes the other's shares.  What an estimator that
// is worse than marginal says on live traffic is not asked any more, and the log says so once.
// On the CPU.  Thread-compatible.  Borrows the routers.  Does not do: sums over ranks, fitting, files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/popularity/live_estimates.h"
#include "workers/moe/gate_forecast.h"
#include "workers/moe/layer_forecaster.h"
#include "workers/moe/row_scratch.h"
#include "workers/ops/weight.h"

namespace switchyard {

struct RowForecasterOptions {
  std::string model;                          // the served weights' hash: what profiles are good for
  RoutingShape shape;                         // of the model's MoE layers
  std::vector<const Weight*> routers;         // [L] of [E, H]
  int64_t profile_bytes = int64_t{32} << 20;  // of each phase's profiles
};

class RowForecaster : public LayerForecaster {
 public:
  // REQUIRES: routers of all layers of the shape; CheckProfile of such profiles passes.
  explicit RowForecaster(RowForecasterOptions options);

  // The options' profiles, whatever happens to the forecaster: for CheckProfile.
  static LiveOptions LiveOptionsOf(const RowForecasterOptions& options, Phase phase);

  // From now on logits of layer + ahead are also told by this map from layer's rows.
  // InvalidArgument: layers or sizes that the model does not have.
  absl::Status SetProbe(int layer, int ahead, ForecastMap map);

  absl::StatusOr<absl::Span<const LayerEstimate>> Begin(const ForecastPass& pass) override;
  // Errors: Internal for a layer out of turn or other rows than the pass'; the ops'.
  absl::StatusOr<absl::Span<const LayerEstimate>> OnGate(const GatedRows& rows) override;

  const LiveEstimates& phase(Phase phase) const { return live_[static_cast<size_t>(phase)]; }
  LiveEstimates* mutable_phase(Phase phase) { return &live_[static_cast<size_t>(phase)]; }
  // What forecasting took so far, products and counting.
  absl::Duration spent() const { return spent_; }

 private:
  // The phase's rows of the pass, with what is known of their routing.
  RoutingView ViewOf(Phase phase) const;
  absl::Status TakeChoices(const GatedRows& rows);
  absl::Status Predict(const GatedRows& rows, int layer, int ahead);
  absl::Status PredictBy(const GatedRows& rows, Predictor predictor, int layer, int ahead);
  // Appends what is expected of the layer, if anything is.
  void Estimate(int layer, int ahead);
  void Report();

  const RowForecasterOptions options_;
  int num_predicted_;                                                    // M
  std::vector<LiveEstimates> live_;                                      // [Phase]
  std::vector<std::array<std::optional<ForecastMap>, kMaxAhead>> maps_;  // [L][ahead - 1] from that layer
  GateForecast forecast_;
  RowScratch predicted_memory_;

  // Of the pass.
  int64_t num_rows_ = 0, num_decode_rows_ = 0;
  int next_layer_ = 0;
  std::vector<int32_t> token_ids_;                // [T]
  std::array<bool, 2> ids_known_ = {};            // [Phase]
  std::vector<int16_t> experts_;                  // [L, T, K]
  std::vector<int16_t> predictions_;              // [T, M]
  std::array<Popularity, kMaxAhead> popularity_;  // [ahead - 1][E]
  std::vector<LayerEstimate> estimates_;
  absl::Duration spent_;
};

}  // namespace switchyard
