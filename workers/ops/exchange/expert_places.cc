#include "workers/ops/exchange/expert_places.h"

#include "scheduler/base/status_macros.h"
#include "workers/ops/core/cuda_call.h"
#include "workers/ops/core/op_checks.h"

namespace switchyard::ops {
namespace {

absl::Status Check(const OpSite& at, const TensorView& topk_idx, const PlaceTable& table, const ExpertPlaces& found) {
  if (topk_idx.dtype() != DType::kI32 || topk_idx.rank() != 2 || !topk_idx.contiguous() ||
      !(topk_idx.device() == at.device)) {
    return absl::InvalidArgumentError(absl::StrCat("exchange: topk_idx must be contiguous int32 [T, K] on ",
                                                   at.device.ToString(), ", is ", topk_idx.ToString()));
  }
  const int64_t experts = table.place_offsets.size() - 1;
  const DealtRows& dealt = table.dealt;
  const bool fits = dealt.place_rows.empty()
                        ? table.slot_here.size() == experts
                        : dealt.place_rows.size() == table.places.size() / 2 &&
                              dealt.sorted_at.size() == topk_idx.NumElements() &&
                              dealt.expert_offsets.size() == experts + 1 && dealt.sorted_at.device() == at.device;
  if (experts < 1 || !fits || table.places.size() % 2 != 0 || !(table.place_offsets.device() == at.device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: a table of ", experts, " experts on ", table.place_offsets.device().ToString(),
                     " with ", table.slot_here.size(), " slots here, ", table.places.size() / 2, " places, ",
                     dealt.place_rows.size(), " of which get rows, ", dealt.sorted_at.size(), " sorted choices of ",
                     topk_idx.NumElements(), " and ", dealt.expert_offsets.size(), " offsets of these"));
  }
  if (!at.device.is_cpu() && topk_idx.dim(1) > kMaxExchangeTopK) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: ", topk_idx.dim(1), " choices a row, at most ", kMaxExchangeTopK));
  }
  RETURN_IF_ERROR(ExpectView(at, "rank_of", found.rank_of, DType::kI32, topk_idx.shape()));
  RETURN_IF_ERROR(ExpectView(at, "slot_of", found.slot_of, DType::kI32, topk_idx.shape()));
  return ExpectView(at, "first_of", found.first_of, DType::kI32, topk_idx.shape());
}

// -1: none was dealt.
int64_t DealtPlace(const ExpertPlacesArgs& a, int64_t i, int32_t expert) {
  int32_t before = a.sorted_at[i] - a.expert_offsets[expert];
  for (int64_t place = a.place_offsets[expert]; place < a.place_offsets[expert + 1]; ++place) {
    if (before < a.place_rows[place]) return place;
    before -= a.place_rows[place];
  }
  return -1;
}

absl::Status FindOnCpu(const ExpertPlacesArgs& a) {
  for (int64_t i = 0; i < a.rows * a.top_k; ++i) {
    const int64_t token = i / a.top_k;
    const int32_t expert = a.topk_idx[i];
    if (expert < -1 || expert >= a.experts) {
      return absl::InvalidArgumentError(absl::StrCat("exchange: topk_idx[", token, ", ", i % a.top_k, "] = ", expert,
                                                     " is no expert of ", a.experts));
    }
    a.rank_of[i] = a.slot_of[i] = a.first_of[i] = -1;
    if (expert == -1) continue;
    if (a.place_rows != nullptr) {
      const int64_t place = DealtPlace(a, i, expert);
      if (place < 0) {
        return absl::InternalError(
            absl::StrCat("exchange: no place was dealt for topk_idx[", token, ", ", i % a.top_k, "] = ", expert));
      }
      a.rank_of[i] = a.places[2 * place];
      a.slot_of[i] = a.places[2 * place + 1];
    } else if (a.slot_here[expert] >= 0) {
      a.rank_of[i] = a.rank;
      a.slot_of[i] = a.slot_here[expert];
    } else {
      const int32_t begin = a.place_offsets[expert], count = a.place_offsets[expert + 1] - begin;
      const int64_t place = begin + (a.rank + a.first_token + token) % count;
      a.rank_of[i] = a.places[2 * place];
      a.slot_of[i] = a.places[2 * place + 1];
    }
    bool first = true;
    for (int64_t before = token * a.top_k; before < i; ++before) first &= a.rank_of[before] != a.rank_of[i];
    if (first) a.first_of[i] = a.rank_of[i];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FindExpertPlaces(const Stream& stream, const TensorView& topk_idx, const PlaceTable& table,
                              int64_t first_token, const ExpertPlaces& found) {
  const OpSite at = {"exchange", stream.device()};
  RETURN_IF_ERROR(ExpectKernels(at));
  RETURN_IF_ERROR(Check(at, topk_idx, table, found));
  const ExpertPlacesArgs args = {.topk_idx = topk_idx.data<int32_t>(),
                                 .place_offsets = table.place_offsets.data(),
                                 .places = table.places.data(),
                                 .slot_here = table.slot_here.data(),
                                 .rows = topk_idx.dim(0),
                                 .top_k = topk_idx.dim(1),
                                 .experts = table.place_offsets.size() - 1,
                                 .place_rows = table.dealt.place_rows.data(),
                                 .sorted_at = table.dealt.sorted_at.data(),
                                 .expert_offsets = table.dealt.expert_offsets.data(),
                                 .first_token = first_token,
                                 .rank = table.rank,
                                 .rank_of = found.rank_of.data<int32_t>(),
                                 .slot_of = found.slot_of.data<int32_t>(),
                                 .first_of = found.first_of.data<int32_t>()};
  if (at.device.is_cpu()) return FindOnCpu(args);
  return RunOnCuda("exchange", stream, &CudaKernelTable::expert_places, args);
}

}  // namespace switchyard::ops
