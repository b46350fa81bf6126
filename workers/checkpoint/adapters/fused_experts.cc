#include "workers/checkpoint/adapters/fused_experts.h"

#include <algorithm>
#include <utility>

namespace switchyard::checkpoint {

absl::Status SplitExperts(absl::string_view layer, absl::string_view projection, const AdaptedMatrix& fused,
                          std::map<std::string, AdaptedMatrix>* to) {
  const auto rows_of_a = static_cast<int64_t>(fused.a.size()) / fused.columns;
  const auto columns_of_b = static_cast<int64_t>(fused.b.size()) / fused.rows;
  if (rows_of_a % fused.rank != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(layer, ": lora_A of ", projection, " has ", rows_of_a, " rows, no multiple of r, ", fused.rank));
  }
  if (rows_of_a != columns_of_b) {
    return absl::InvalidArgumentError(absl::StrCat(layer, ": lora_A of ", projection, " has ", rows_of_a,
                                                   " rows, lora_B ", columns_of_b, " columns"));
  }
  const int64_t num_experts = rows_of_a / fused.rank;
  for (int64_t e = 0; e < num_experts; ++e) {
    AdaptedMatrix own = {
        .rank = fused.rank, .rows = fused.rows, .columns = fused.columns, .scale = fused.scale, .a = {}, .b = {}};
    const auto first = fused.a.begin() + FusedRowOfA(e, 0, fused.rank) * fused.columns;
    own.a.assign(first, first + fused.rank * fused.columns);
    own.b.reserve(static_cast<size_t>(fused.rows * fused.rank));
    for (int64_t i = 0; i < fused.rows; ++i) {
      for (int64_t j = 0; j < fused.rank; ++j) {
        own.b.push_back(fused.b[static_cast<size_t>(i * columns_of_b + FusedColumnOfB(e, j, num_experts))]);
      }
    }
    (*to)[ExpertMatrixName(layer, e, projection)] = std::move(own);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
