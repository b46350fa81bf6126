#include "server/fleet/loss_causes.h"

#include <fstream>

#include "absl/strings/match.h"

namespace switchyard::server {
namespace {

// A worker that is asked to stop (SIGTERM) exits with 0; none that fails does.
bool WasKilled(const std::string& end) {
  return absl::StartsWith(end, "signal 9 ") || absl::StartsWith(end, "signal 15 ") || end == "exit code 0";
}

}  // namespace

LossCauses::LossCauses(std::function<std::string(int, int64_t)> end_of, std::function<int64_t()> oom_kills)
    : end_of_(std::move(end_of)), oom_kills_(std::move(oom_kills)), oom_kills_before_(oom_kills_()) {}

void LossCauses::Lost(const fleet::WorkerInfo& info, const std::string& end) {
  killed_ |= WasKilled(end);
  if (info.local_index >= 0 && end.empty()) lost_.emplace_back(info.local_index, info.pid);
}

void LossCauses::Tick(absl::Time now) {
  if (now - looked_ < absl::Seconds(1)) return;
  looked_ = now;
  oom_kills_before_ = oom_kills_();
}

bool LossCauses::TakeVerdict() {
  const bool short_of_memory = oom_kills_() > oom_kills_before_;
  for (const auto& [index, pid] : std::exchange(lost_, {})) killed_ |= end_of_ && WasKilled(end_of_(index, pid));
  const bool killed = std::exchange(killed_, false);
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
