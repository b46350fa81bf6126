#include "server/fleet/loss_causes.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"

namespace switchyard::server {

LossCauses::LossCauses(std::function<std::string(int, int64_t)> end_of, std::function<int64_t()> oom_kills)
    : end_of_(std::move(end_of)), oom_kills_(std::move(oom_kills)), oom_kills_before_(oom_kills_()) {}

void LossCauses::Lost(const fleet::WorkerInfo& info) {
  if (info.local_index >= 0) lost_.emplace_back(info.local_index, info.pid);
}

bool LossCauses::CameFromOutside() {
  const int64_t oom_kills = oom_kills_();
  const bool short_of_memory = oom_kills > oom_kills_before_;
  oom_kills_before_ = oom_kills;
  const bool killed = std::any_of(lost_.begin(), lost_.end(), [this](const auto& worker) {
    const std::string end = end_of_ ? end_of_(worker.first, worker.second) : "";
    return absl::StartsWith(end, "signal 9 ") || absl::StartsWith(end, "signal 15 ");
  });
  lost_.clear();
  return std::exchange(silent_, false) || (killed && !short_of_memory);
}

int64_t LossCauses::OomKills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  for (int64_t value = 0; file >> name >> value;) {
    if (name == "oom_kill") return value;
  }
  return 0;
}

}  // namespace switchyard::server
