// Learns what the last few gates say of the layers to come: a correction of need_rate.h's chance, learned while
// serving.
//
// The guess is the base chance plus a learned term for each expert that one of the last num_sources gates needed:
// weight[layer][gates from that gate to the layer's run][that expert][expert].  After each run a layer's weights take a
// step towards what was needed (normalized least mean squares), for another distance each pass.  These are path
// profiles (Lina, section 5.2) as an additive model over l = num_sources layers, which needs no table of paths and
// reaches over the end of a pass to the next token.  Gates that needed more than half of the experts are left out. The
// table is bounded by layers ahead and by bytes: layers further ahead get no correction, and where bytes do not suffice
// fewer gates are looked back at.  Integers only.  Thread-compatible; copyable.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/offload/policies/cache_policy.h"

namespace switchyard::offload {

class NeedPath {
 public:
  // Memory: L * (layers ahead + num_sources - 1) * E * E * 4 bytes, at most max_bytes.  48 layers of 128 experts in
  // kMaxBytes: 8 layers ahead from 8 sources, 45 MiB; 94 of 128: 8 from 3; 58 of 256: 4 from 1.
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr int kMaxAhead = 8;

  // With num_sources 0, or no room for one, it says nothing.
  NeedPath(int num_layers, int num_experts, int num_sources, int64_t max_bytes = kMaxBytes);
  int num_sources() const { return num_sources_; }
  // Layers ahead that get a correction.
  int num_ahead() const { return num_ahead_; }

  // The gate of need.layer has run; base [E]: the chances without the path.
  void Observe(const LayerNeed& need, absl::Span<const int32_t> base);
  // The number to add to the base chance of the expert's next run, of any sign.
  int32_t Correction(ExpertKey key) const { return static_cast<int32_t>(score_[key] / (1 << kFraction)); }

 private:
  static constexpr int kFraction = 8;  // bits of a weight below a chance's
  // The layer's weights [E] for a need of `expert` `distance` gates before.
  int32_t* Row(int layer, int distance, int expert);
  const std::vector<int32_t>& Gate(int64_t ago) const { return gates_[(num_gates_ - 1 - ago) % gates_.size()]; }
  void Learn(const LayerNeed& need, absl::Span<const int32_t> base);
  // Adds the rows of these experts to score [E], so many times.
  void Add(int64_t times, int layer, int distance, const std::vector<int32_t>& experts, int64_t* score);
  int num_distances() const { return num_sources_ == 0 ? 0 : num_ahead_ + num_sources_ - 1; }

  int num_layers_;
  int num_experts_;
  int num_sources_ = 0;
  int num_ahead_ = 0;
  std::vector<int32_t> weights_;             // [L, distances, E, E]
  std::vector<int64_t> score_;               // [L * E] of each layer's next run, 0 until it is near
  std::vector<std::vector<int32_t>> gates_;  // a ring [ahead + sources + 1] of the experts that gates needed
  int64_t num_gates_ = 0;
};

}  // namespace switchyard::offload
