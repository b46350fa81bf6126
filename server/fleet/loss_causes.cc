#include "server/fleet/loss_causes.h"

#include <fstream>

#include "absl/strings/match.h"

namespace switchyard::server {
namespace {

// A worker that is asked to stop (SIGTERM) exits with 0; none that fails does.
bool WasKilled(const std::string& end) {
  return absl::StartsWith(end, "signal 9 ") || absl::StartsWith(end, "signal 15 ") || end == "exit code 0";
}

constexpr absl::Duration kRecent = absl::Seconds(1);
// So long a pause of this process may end links: pings, and gRPC's looks for the answers to its own, come late by it.
constexpr absl::Duration kLongPause = absl::Milliseconds(500);

}  // namespace

LossCauses::LossCauses(std::function<std::string(int, int64_t)> end_of, std::function<int64_t()> oom_kills)
    : end_of_(std::move(end_of)), oom_kills_(std::move(oom_kills)), oom_kills_before_(oom_kills_()) {}

void LossCauses::Lost(const fleet::WorkerInfo& info, const std::string& end) {
  killed_ |= WasKilled(end);
  if (info.local_index >= 0 && end.empty()) lost_.emplace_back(info.local_index, info.pid);
}

void LossCauses::Tick(absl::Time now, bool ready) {
  const bool paused = server_stall_.Look(now) > kLongPause;
  if (ready && now - looked_ >= kRecent) {
    looked_ = now;
    oom_kills_before_ = oom_kills_();
    paused_ = false;
  }
  paused_ |= paused;
}

bool LossCauses::TakeVerdict() {
  // The next loss is not of these kills: without this it would be, if it came within the same second.
  const int64_t oom_kills = oom_kills_();
  const bool short_of_memory = oom_kills > std::exchange(oom_kills_before_, oom_kills);
  for (const auto& [index, pid] : std::exchange(lost_, {})) killed_ |= end_of_ && WasKilled(end_of_(index, pid));
  const bool killed = std::exchange(killed_, false), paused = std::exchange(paused_, false);
  return std::exchange(silent_, false) || ((killed || paused) && !short_of_memory);
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
