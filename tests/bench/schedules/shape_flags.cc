#include "tests/bench/schedules/shape_flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(double, tokens, 1024, "of a rank");
ABSL_FLAG(double, row_bytes, 256, "of a token's row");
ABSL_FLAG(double, rows_per_token, 1, "top-k times the capacity factor");
ABSL_FLAG(double, token_over_row, 1,
          "a token's row where copies gather or add it, over a dispatched one: 2 in layers of 16 bits");
ABSL_FLAG(double, hidden_over_row, 4, "an expert's hidden row over a token's");
ABSL_FLAG(double, experts_ms, 10, "what experts' forward takes where each rank's rows are dispatched once, unsharded");
ABSL_FLAG(double, copy_bytes_per_s, 1e9, "of a rank's copy engine");
ABSL_FLAG(double, rank_bytes_per_s, 1e7, "of a rank's link");
ABSL_FLAG(double, node_bytes_per_s, 3e7, "of a node's");
ABSL_FLAG(double, latency_s, 0, "of a message");
ABSL_FLAG(int, node_size, 4, "ranks");

namespace switchyard::bench {

simulator::MoeLayerShape LayerShapeOfFlags() {
  const double row = absl::GetFlag(FLAGS_row_bytes);
  return {.tokens = absl::GetFlag(FLAGS_tokens),
          .hidden = row,
          .expert_hidden = row * absl::GetFlag(FLAGS_hidden_over_row),
          .rows_per_token = absl::GetFlag(FLAGS_rows_per_token),
          .element_bytes = 1,
          .token_bytes = absl::GetFlag(FLAGS_token_over_row)};
}

simulator::Cluster ClusterOfFlags(int ranks) {
  const simulator::MoeLayerShape shape = LayerShapeOfFlags();
  const double flops = shape.tokens * shape.rows_per_token * 4 * shape.hidden * shape.expert_hidden;
  return {.ranks = ranks,
          .ranks_per_node = absl::GetFlag(FLAGS_node_size),
          .rank_bytes_per_s = absl::GetFlag(FLAGS_rank_bytes_per_s),
          .node_bytes_per_s = absl::GetFlag(FLAGS_node_bytes_per_s),
          .rank_latency_s = absl::GetFlag(FLAGS_latency_s),
          .node_latency_s = absl::GetFlag(FLAGS_latency_s),
          .flops = flops / (1e-3 * absl::GetFlag(FLAGS_experts_ms)),
          .copy_bytes_per_s = absl::GetFlag(FLAGS_copy_bytes_per_s),
          .peers_apart = true};
}

}  // namespace switchyard::bench
