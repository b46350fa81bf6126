#include "scheduler/offload/forecast/need_path.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::offload {
namespace {

// A step repairs one in so many parts of the error, all weights of the guess together.
constexpr int64_t kStepParts = 8;

}  // namespace

NeedPath::NeedPath(int num_layers, int num_experts, int num_sources, int64_t max_bytes)
    : num_layers_(num_layers), num_experts_(num_experts), score_(static_cast<size_t>(num_layers) * num_experts, 0) {
  const int64_t of_distance = int64_t{num_layers} * num_experts * num_experts * static_cast<int64_t>(sizeof(int32_t));
  const int most_ahead = std::min(num_layers, kMaxAhead);
  const int64_t room = std::min<int64_t>(most_ahead + num_sources - 1, max_bytes / of_distance);
  if (num_sources == 0 || room == 0) return;
  // Where room is short, layers ahead count for more than gates looked back at (offload.md).
  const int64_t sources = std::max<int64_t>({1, (room + 1) / 3, room - most_ahead + 1});
  num_sources_ = static_cast<int>(std::min<int64_t>(num_sources, sources));
  num_ahead_ = static_cast<int>(room) - num_sources_ + 1;
  weights_.resize(static_cast<size_t>(num_distances() * of_distance) / sizeof(int32_t));
  gates_.resize(static_cast<size_t>(num_ahead_ + num_sources_ + 1));
}

int32_t* NeedPath::Row(int layer, int distance, int expert) {
  SY_CHECK(0 < distance && distance <= num_distances());
  return &weights_[((static_cast<size_t>(layer) * num_distances() + distance - 1) * num_experts_ + expert) *
                   num_experts_];
}

void NeedPath::Add(int64_t times, int layer, int distance, const std::vector<int32_t>& experts, int64_t* score) {
  for (const int32_t expert : experts) {
    const int32_t* row = Row(layer, distance, expert);
    for (int e = 0; e < num_experts_; ++e) score[e] += times * row[e];
  }
}

// Called before this gate is in the ring: Gate(0) ran one gate ago.
void NeedPath::Learn(const LayerNeed& need, absl::Span<const int32_t> base) {
  const int nearest = 1 + static_cast<int>(num_gates_ / num_layers_ % num_ahead_);
  std::vector<int64_t> score(num_experts_, 0);
  for (int j = 0; j < num_sources_; ++j) Add(1, need.layer, nearest + j, Gate(nearest + j - 1), score.data());
  int64_t active = 0;  // weights that the guess is made of
  for (int j = 0; j < num_sources_; ++j) active += static_cast<int64_t>(Gate(nearest + j - 1).size());
  if (active == 0) return;
  std::vector<int32_t> step(num_experts_);
  for (int e = 0; e < num_experts_; ++e) {
    const int64_t guess = std::clamp<int64_t>(base[e] + score[e] / (1 << kFraction), 0, kChance);
    step[e] =
        static_cast<int32_t>(((need.rows[e] > 0 ? kChance : 0) - guess) * (1 << kFraction) / (kStepParts * active));
  }
  for (int j = 0; j < num_sources_; ++j) {
    for (const int32_t expert : Gate(nearest + j - 1)) {
      int32_t* row = Row(need.layer, nearest + j, expert);
      for (int e = 0; e < num_experts_; ++e) row[e] += step[e];
    }
  }
}

void NeedPath::Observe(const LayerNeed& need, absl::Span<const int32_t> base) {
  if (num_sources_ == 0) return;
  if (num_gates_ > static_cast<int64_t>(gates_.size())) Learn(need, base);
  const std::vector<int32_t> oldest = num_gates_ >= num_sources_ ? Gate(num_sources_ - 1) : std::vector<int32_t>();
  std::vector<int32_t>& now = gates_[num_gates_ % gates_.size()];
  now.clear();
  for (int e = 0; e < num_experts_; ++e) {
    if (need.rows[e] > 0) now.push_back(e);
  }
  if (2 * now.size() > static_cast<size_t>(num_experts_)) now.clear();
  ++num_gates_;
  for (int ahead = 1; ahead < num_ahead_; ++ahead) {
    const int layer = (need.layer + ahead) % num_layers_;
    int64_t* score = &score_[static_cast<size_t>(layer) * num_experts_];
    Add(1, layer, ahead, now, score);
    Add(-1, layer, ahead + num_sources_, oldest, score);
  }
  // This layer's next run is far away, and its weights have moved; the furthest one that is near starts from nothing.
  int64_t* of_this = &score_[static_cast<size_t>(need.layer) * num_experts_];
  std::fill(of_this, of_this + num_experts_, 0);
  const int furthest = (need.layer + num_ahead_) % num_layers_;
  int64_t* score = &score_[static_cast<size_t>(furthest) * num_experts_];
  for (int j = 0; j < num_sources_ && j < num_gates_; ++j) Add(1, furthest, num_ahead_ + j, Gate(j), score);
}

}  // namespace switchyard::offload
