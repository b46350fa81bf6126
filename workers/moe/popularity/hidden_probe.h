// A hidden layer beside a fitted linear map (ridge_probe.h), for what the map misses of a row:
//   logits ≈ W f + b + O max(0, A f + a)
// W, b, A, a and O are fitted by gradient steps (Adam: Kingma and Ba, 2015; the rate falls to 0) on the squared error
// of the logits, their mean taken off per row as for the map.  W and b begin as the map, O at 0.
// scheduler/popularity/README.md compares it with others and says what it costs.
//
// Keeps rows up to a bound, then a random sample of those seen (Vitter's algorithm R), since steps need every row
// several times.  Deterministic: the same rows in the same order give the same bits on any number of threads.
// Thread-compatible.  Does not predict (gate_forecast.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::moe {

struct HiddenFitOptions {
  int64_t num_units = 64;  // U
  int num_epochs = 6;
  int64_t batch_rows = 512;  // of a step
  double rate = 6e-3;        // of the first step
};

struct HiddenLayer {
  int64_t num_units = 0;
  Tensor linear;  // [E + U, D + 1] fp64: W and b, below them A and a; the bias last
  Tensor out;     // [E, U] fp64: O
};

class HiddenProbe {
 public:
  // REQUIRES: all >= 1.
  HiddenProbe(int64_t num_features, int64_t num_experts, int64_t max_rows);
  // The bytes of one kept row.
  static int64_t BytesOfRow(int64_t num_features, int64_t num_experts);

  // REQUIRES: floating, finite, on the CPU; as many rows.
  void Add(const TensorView& features,  // [T, D]
           const TensorView& logits);   // [T, E]
  int64_t num_rows() const { return num_seen_; }
  int64_t num_kept() const { return static_cast<int64_t>(rows_.size()) / width(); }

  // Fits on 15 of 16 of the kept rows; none where the layer predicts the others no better than the map does.
  // map: RidgeProbe::Solve's, [E, D + 1].  Blocks, on all threads of the stream.
  std::optional<HiddenLayer> Fit(const Stream& stream, const TensorView& map, const HiddenFitOptions& options) const;

 private:
  int64_t width() const { return num_features_ + num_experts_; }

  int64_t num_features_, num_experts_, max_rows_;
  int64_t num_seen_ = 0;
  std::vector<float> rows_;  // [kept, D + E]: features, logits without their mean
};

}  // namespace switchyard::moe
