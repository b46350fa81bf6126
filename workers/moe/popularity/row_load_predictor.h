// Forecasts from this rank's rows: prefill and decode each by the best of their live estimators
// (scheduler/popularity/predictors/live_estimates.h), which read the coming layers' own gates on the current rows and,
// where a map is fitted, the probe (gate_forecast.h).
//
// At a gate the rows' choices are kept, scored and counted; then the products that an estimator of this pass reads for
// the layers one and two ahead are run, [T, H] x [H, E] each, and the best estimates of both phases are added.  A phase
// without an estimate takes the other's shares.  Maps are loaded from a profile bundle, or fitted while serving
// (probe_fit.h) in a share of the step's time. On a device products run there, and the host waits once a gate for the
// experts that they name; counting and fitting stay on the host.  Thread-compatible.  Borrows the routers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/popularity/predictors/live_estimates.h"
#include "scheduler/popularity/profile_bundle.h"
#include "workers/moe/layer/row_scratch.h"
#include "workers/moe/popularity/gate_forecast.h"
#include "workers/moe/popularity/layer_load_predictor.h"
#include "workers/moe/popularity/probe_fit.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct RowLoadPredictorOptions {
  std::string model;                              // the served weights' hash: what profiles are good for
  popularity::RoutingShape shape;                 // of the model's MoE layers
  std::vector<const ops::Weight*> routers;        // [L] of [E, H]
  int64_t hidden = 0;                             // H
  DType dtype = DType::kBf16;                     // of the rows
  int path_length = popularity::kLivePathLength;  // l of the profiles' paths
  int64_t profile_bytes = int64_t{32} << 20;      // of each phase's profiles
  double probe_share = 0;       // of a step's time, for fitting; 0: nothing is fitted; 1: all rows are
  bool keeps_own = false;       // fitted maps add to loaded ones, to be written, and do not take their place
  bool paper_estimate = false;  // estimates are Lina's (LiveOptions)
};

// All that a load predictor has learned.
struct Learned {
  popularity::ProfileBundle all;
  popularity::ProfileBundle own = {};  // of it, what is from these rows and not loaded
};

class RowLoadPredictor : public LayerLoadPredictor {
 public:
  // REQUIRES: routers of all layers of the shape; CheckProfile of such profiles passes.
  explicit RowLoadPredictor(RowLoadPredictorOptions options);

  // Options of the live estimators, for CheckProfile.
  static popularity::LiveOptions LiveOptionsOf(const RowLoadPredictorOptions& options, popularity::Phase phase);
  // Memory that fitting probes takes, sums and solving; 0 where nothing is fitted.
  static int64_t FitBytesOf(const RowLoadPredictorOptions& options);

  // Loads what was learned before: once, at the start.  InvalidArgument: of another model or shape, with the field.
  absl::Status Load(const Stream& stream, Learned learned);
  // All that was learned.  Where the options keep fitted maps apart, this solves the fit, which blocks, and merges
  // loaded and fitted maps (ProfileBundle::Merge, its errors); else maps are those in use.
  absl::StatusOr<Learned> Collect(const Stream& stream) const;

  // The parts of all that was learned, to be collected between passes piece by piece: a profile each, then the maps in
  // use, in a bundle's order.  own: only what is from these rows and not loaded.  REQUIRES: piece in [0, num_pieces()),
  // rising.
  int num_pieces() const;
  void AddPiece(int piece, bool own, popularity::ProfileBundle* bundle) const;
  // A bundle of this model with nothing learned.
  popularity::ProfileBundle EmptyBundle() const;

  // From now on this map also predicts map.layer + map.ahead from map.layer's rows.
  // InvalidArgument: layers or sizes that the model does not have.
  absl::Status SetProbe(const Stream& stream, popularity::ProbeMap map);

  // Allocates scratch for passes of so many rows, which else grows; once all maps are loaded.
  // Errors: ResourceExhausted.
  absl::Status Reserve(const Stream& stream, int64_t rows);
  // Bytes of a device's memory that maps fitted from now on may take.
  int64_t MapBytesToCome(DeviceKind device) const;

  absl::StatusOr<absl::Span<const placement::LayerEstimate>> Begin(const ForecastPass& pass) override;
  // Waits for the stream where that is a device's, until rows.deadline.
  // Errors: Internal for a layer out of turn or other rows than the pass'; the ops', the device's.
  absl::StatusOr<absl::Span<const placement::LayerEstimate>> OnGate(const MoeContext& context,
                                                                    const LayerContext& layer) override;

  const popularity::LiveEstimates& phase(popularity::Phase phase) const { return live_[static_cast<size_t>(phase)]; }
  popularity::LiveEstimates* mutable_phase(popularity::Phase phase) { return &live_[static_cast<size_t>(phase)]; }
  // Fits maps of these rows; null: none are fitted.
  const ProbeFit* fit() const { return fit_.get(); }
  // The time that forecasting took so far, products and counting.
  absl::Duration spent() const { return absl::Seconds(spent_seconds_); }

 private:
  // The place of a map among probes_, in a bundle's order.
  static size_t IndexOf(const popularity::ProbeMap& map);
  // The phase's rows of the pass, with what is known of their routing.
  popularity::RoutingView ViewOf(popularity::Phase phase) const;
  absl::Status TakeChoices(const LayerContext& layer);
  // A prediction that is to be made of one phase's rows.
  struct Question {
    popularity::Predictor predictor = popularity::Predictor::kGateAhead;
    int layer = 0, ahead = 1;  // the layer that is predicted, and how many layers before it
    popularity::Phase phase = popularity::Phase::kPrefill;
    int64_t count = 0;                 // of rows
    const ForecastMap* map = nullptr;  // the probe's; null: the layer's own router
  };
  // None where the phase does not want it, or there is no map.
  std::optional<Question> QuestionOf(popularity::Predictor predictor, int layer, int ahead,
                                     popularity::Phase phase) const;
  // Hands the phases the predictions that they want of the layers ahead.
  absl::Status Predict(const MoeContext& context, const LayerContext& layer);
  // x: the layer's rows.
  absl::Status Ask(const Stream& stream, const TensorView& x, const Question& question,
                   const TensorView& predicted);  // [count, M] int32 on the rows' device
  absl::Status Fit(const MoeContext& context, const LayerContext& layer);
  // Appends the forecast of the layer, if there is one.
  void Estimate(int layer, int ahead);

  // Uses what was fitted meanwhile, where it saw more rows than the present map.
  absl::Status TakeFitted(const Stream& stream);

  struct Probe {
    ForecastMap map;
    popularity::ProbeMap source;  // that it was made of
    bool fitted = false;          // here
  };

  // Rows on the host; of a device's, those of a window alone, each at its place.
  class WindowCopy {
   public:
    // Valid until the next call.  Blocks, at most until context.deadline.
    absl::StatusOr<TensorView> Take(const MoeContext& context, const TensorView& from, const ProbeFit::Window& window);

   private:
    PinnedBuffer pinned_;
  };

  const RowLoadPredictorOptions options_;
  int num_predicted_;                                                // M
  std::vector<popularity::LiveEstimates> live_;                      // [Phase]
  std::vector<std::optional<Probe>> probes_;                         // [L, kMaxAhead]
  std::vector<popularity::ProbeMap> loaded_maps_, loaded_own_maps_;  // where what is own is kept apart
  std::unique_ptr<ProbeFit> fit_;                                    // null: nothing is fitted
  GateForecast forecast_;
  RowScratch predicted_memory_;
  HostCopy answers_on_host_;
  WindowCopy x_on_host_, logits_on_host_;

  // The state of the pass.
  int64_t num_rows_ = 0, num_decode_rows_ = 0;
  int next_layer_ = 0;
  std::vector<int32_t> token_ids_;                                        // [T]
  std::array<bool, 2> ids_known_ = {};                                    // [Phase]
  std::vector<Question> questions_;                                       // of a gate
  std::vector<int16_t> experts_;                                          // [L, T, K]
  std::vector<int16_t> predictions_;                                      // [T, M]
  std::array<popularity::Popularity, popularity::kMaxAhead> popularity_;  // [ahead - 1][E]
  std::vector<placement::LayerEstimate> estimates_;
  double spent_seconds_ = 0;
};

}  // namespace switchyard::moe
