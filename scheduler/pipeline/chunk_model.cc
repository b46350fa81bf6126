#include "scheduler/pipeline/chunk_model.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
namespace {

constexpr double kRounding = 1e-9;  // of sums, no gain

}  // namespace

double TimeCurve::At(double size) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1) return points_[0].seconds * size / points_[0].size;
  const auto above = std::lower_bound(points_.begin() + 1, points_.end() - 1, size,
                                      [](const Point& point, double at) { return point.size < at; });
  const Point &from = *(above - 1), &to = *above;
  const double slope = (to.seconds - from.seconds) / (to.size - from.size);
  return std::max(0.0, from.seconds + slope * (size - from.size));
}

double PassSeconds(const ChunkTimes& times, int chunks, CopyOrder order, const BesideSpeeds& speeds) {
  SY_CHECK_GE(chunks, 1);
  const double copy = order == CopyOrder::kNone ? 0 : times.copy;
  if (chunks == 1) return times.dispatch + times.experts + times.combine + copy;
  // Those of ops that have others beside them.
  const double dispatch = times.dispatch / speeds.all_to_all, combine = times.combine / speeds.all_to_all;
  const double experts = times.experts / speeds.experts;
  const double middle = (chunks - 2) * std::max({dispatch + combine, experts, copy});
  switch (order) {
    case CopyOrder::kNone:
      return times.dispatch + std::max(dispatch, experts) + middle + std::max(combine, experts) + times.combine;
    case CopyOrder::kBehindExperts:
      return times.dispatch + std::max(dispatch, experts) + middle + std::max({combine, experts, copy}) +
             std::max(times.combine, copy);
    case CopyOrder::kBeforeExperts:
      return std::max(times.dispatch, copy) + std::max({dispatch, experts, copy}) + middle +
             std::max(experts, combine) + times.combine;
  }
  return 0;
}

double ChunkModel::Seconds(int chunks) const {
  const double part = 1.0 / chunks;
  double copied = 0;
  if (restore_.input == InputRestore::kOffload) copied += load_.input_bytes;
  if (restore_.hidden == HiddenRestore::kOffload) copied += load_.hidden_bytes;
  const ChunkTimes forward = {.dispatch = times_.all_to_all.At(load_.dispatch_bytes * part),
                              .experts = times_.experts.At(load_.rows * part),
                              .combine = times_.all_to_all.At(load_.combine_bytes * part),
                              .copy = times_.copy.At(copied * part)};
  // Gradients of inputs and of weights have a product each for one of forward; hidden rows again are one of its two.
  // A gradient comes back for each row that was sent, not for each choice.
  ChunkTimes backward = forward;
  backward.experts *= restore_.hidden == HiddenRestore::kRecompute ? 2.5 : 2;
  backward.combine = forward.dispatch;
  if (restore_.input == InputRestore::kResend) backward.dispatch *= 2;
  const bool copies = restore_.offloads();
  return PassSeconds(forward, chunks, copies ? CopyOrder::kBehindExperts : CopyOrder::kNone, times_.beside) +
         PassSeconds(backward, chunks, copies ? CopyOrder::kBeforeExperts : CopyOrder::kNone, times_.beside);
}

int ChunkModel::Choose(int most) const {
  if (times_.beside.all_to_all <= kLeastSpeed || times_.beside.experts <= kLeastSpeed) return 1;
  int best = 1;
  for (int chunks = 2; chunks <= most; ++chunks) {
    if (Seconds(chunks) < Seconds(best) * (1 - kRounding)) best = chunks;
  }
  return best;
}

}  // namespace switchyard::pipeline
