// Statistics of MoE layers, summed over the layers of a step.  An exchange whose counts stay on a device (kPadded, or
// one rank of a device) adds no rows, and its fixed sizes to bytes_sent.  Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace switchyard::moe {

struct MoeStats {
  int64_t rows_sent = 0;              // (token, expert) pairs of this rank computed by other ranks
  int64_t rows_received = 0;          // (token, expert) pairs of other ranks computed here
  int64_t expert_rows = 0;            // pairs computed here in all
  int64_t dropped_rows = 0;           // pairs of this rank that found no room at their expert (expert_capacity.h)
  std::vector<int64_t> layer_rows;    // [MoE layers] of those, each layer's
  std::vector<double> layer_seconds;  // [MoE layers] in routed experts, waits for their copies included
  int64_t experts_read = 0;           // experts that got rows here, on hosts
  int64_t hidden_rows_sent = 0;   // hidden rows that travelled out: a token travels once per rank, however many experts
  int64_t bytes_sent = 0;         // to other ranks, dispatch and combine, headers not counted
  int64_t fine_tuned_layers = 0;  // whose weights moved after their gate (phase 2)
  double exchange_seconds = 0;    // packing, waiting and unpacking
  double gather_seconds = 0;      // of those, the gather of what ranks decide from
  double decide_seconds = 0;      // that layers waited for the decision where their rows go, beside the gather
  double decide_cpu_seconds = 0;  // of this rank's thread, for that
  double expert_seconds = 0;      // expert FFNs, the shared one included
  double routed_seconds = 0;      // of those, without the shared one

  void CountLayer(int moe_layer, int64_t rows, double seconds) {
    const auto layer = static_cast<size_t>(moe_layer);
    if (layer_rows.size() <= layer) {
      layer_rows.resize(layer + 1);
      layer_seconds.resize(layer + 1);
    }
    layer_rows[layer] += rows;
    layer_seconds[layer] += seconds;
  }
  void Clear() { *this = MoeStats(); }
};

}  // namespace switchyard::moe
