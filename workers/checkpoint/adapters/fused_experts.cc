#include "workers/checkpoint/adapters/fused_experts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::checkpoint {

void SplitExperts(absl::string_view layer, absl::string_view projection, const AdaptedMatrix& fused,
                  int64_t num_experts, std::map<std::string, AdaptedMatrix>* to) {
  const int64_t columns_of_b = fused.rank * num_experts;
  SY_CHECK_EQ(static_cast<int64_t>(fused.a.size()), columns_of_b * fused.columns);
  SY_CHECK_EQ(static_cast<int64_t>(fused.b.size()), columns_of_b * fused.rows);
  std::vector<AdaptedMatrix> own(static_cast<size_t>(num_experts));
  for (int64_t e = 0; e < num_experts; ++e) {
    AdaptedMatrix& matrix = own[static_cast<size_t>(e)];
    matrix = {.rank = fused.rank, .rows = fused.rows, .columns = fused.columns, .scale = fused.scale, .a = {}, .b = {}};
    const auto first = fused.a.begin() + FusedRowOfA(e, 0, fused.rank) * fused.columns;
    matrix.a.assign(first, first + fused.rank * fused.columns);
    matrix.b.resize(static_cast<size_t>(fused.rows * fused.rank));
  }
  // (A row of B, which has all experts, is read once while it is in the cache.)
  for (int64_t i = 0; i < fused.rows; ++i) {
    const float* const row = fused.b.data() + i * columns_of_b;
    for (int64_t e = 0; e < num_experts; ++e) {
      float* const of_expert = own[static_cast<size_t>(e)].b.data() + i * fused.rank;
      for (int64_t j = 0; j < fused.rank; ++j) of_expert[j] = row[FusedColumnOfB(e, j, num_experts)];
    }
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    (*to)[ExpertMatrixName(layer, e, projection)] = std::move(own[static_cast<size_t>(e)]);
  }
}

}  // namespace switchyard::checkpoint
