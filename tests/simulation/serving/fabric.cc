#include "tests/simulation/serving/fabric.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::simulation {

void Fabric::Enter(int rank, Process* process, const Host* host, std::function<void(const std::string&)> broken) {
  seats_[rank] = {process, process->life(), host, std::move(broken)};
  if (broken_) {
    process->After(absl::Milliseconds(1), [this, rank] {
      if (seats_[rank].broken) std::exchange(seats_[rank].broken, nullptr)("a peer has closed its connection");
    });
  }
}

// What a cut host sends and gets waits until the cut is over.
absl::Duration Fabric::Latency(const Seat& seat) {
  const absl::Duration cut = std::max(absl::ZeroDuration(), seat.host->cut_until - world_.now());
  return cut + world_.random().Skewed(absl::Microseconds(5), absl::Microseconds(300));
}

void Fabric::Arrive(int rank, int64_t meeting, int wish, std::function<void(int)> all) {
  if (broken_) return;
  std::vector<Waiting>& waiting = meetings_[meeting];
  waiting.push_back({rank, wish, std::move(all)});
  if (waiting.size() < seats_.size()) return;
  absl::Duration last;
  for (const Seat& seat : seats_) last = std::max(last, Latency(seat));
  int most = 0;
  for (const Waiting& one : waiting) most = std::max(most, one.wish);
  for (Waiting& one : waiting) {
    seats_[one.rank].process->After(last + Latency(seats_[one.rank]), [this, most, one = std::move(one)] {
      // Its own end of the fabric may have broken meanwhile.
      if (seats_[one.rank].broken) one.all(most);
    });
  }
  meetings_.erase(meeting);
}

void Fabric::Leave(int rank) {
  seats_[rank].broken = nullptr;
  if (std::exchange(broken_, true)) return;
  meetings_.clear();
  for (size_t r = 0; r < seats_.size(); ++r) {
    Seat& seat = seats_[r];
    if (!seat.broken || !seat.process->alive() || seat.process->life() != seat.life) continue;
    const absl::Duration delay =
        Latency(seat) + world_.random().Skewed(absl::Microseconds(100), absl::Milliseconds(20));
    seat.process->After(delay, [this, r, rank] {
      if (seats_[r].broken)
        std::exchange(seats_[r].broken, nullptr)(absl::StrCat("rank ", rank, " has closed its connection"));
    });
  }
}

}  // namespace switchyard::simulation
