// Estimators of routing as objects of one interface, as benchmarks compare them.
#pragma once

#include <utility>

#include "scheduler/popularity/popularity.h"
#include "scheduler/popularity/trace/routing_view.h"

namespace switchyard {

class LoadPredictor {
 public:
  virtual ~LoadPredictor() = default;
  // [E] T * K * kRow in all: how many of the batch's rows each expert of `layer` gets; empty if it has no estimate.
  // REQUIRES: layers < layer of the batch are known.
  virtual popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const = 0;
  // The gate of `layer` has run: what it chose for the same batch is known now.  Called after Estimate.
  virtual void Observe(const popularity::RoutingView& batch, int layer) = 0;
};

// One of scheduler/popularity/predictors, with what it does when a gate has run, if that is anything.
template <class Predictor>
class LoadPredictorOf final : public LoadPredictor {
 public:
  explicit LoadPredictorOf(Predictor predictor) : predictor_(std::move(predictor)) {}
  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const override {
    return predictor_.Estimate(batch, layer);
  }
  void Observe(const popularity::RoutingView& batch, int layer) override {
    if constexpr (requires { predictor_.Observe(batch, layer); }) predictor_.Observe(batch, layer);
    if constexpr (requires { predictor_.Clear(layer); }) predictor_.Clear(layer);
  }

 private:
  Predictor predictor_;
};

}  // namespace switchyard
