#include "scheduler/simulator/event_simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/simulator/link_shares.h"

namespace switchyard::simulator {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

absl::Status CheckInput(const SimInput& input) {
  RETURN_IF_ERROR(CheckTraffic(input));
  std::vector<char> has(input.collectives.size(), 0);
  std::vector<size_t> last_rank(input.collectives.size(), 0);  // that has an op of it, counted from 1
  for (size_t rank = 0; rank < input.ranks.size(); ++rank) {
    for (size_t i = 0; i < input.ranks[rank].size(); ++i) {
      const SimOp& op = input.ranks[rank][i];
      const auto wrong = [&](absl::string_view what) {
        return absl::InvalidArgumentError(
            absl::StrCat("simulator: op ", i, " (", op.name, ") of rank ", rank, ": ", what));
      };
      for (const int dep : op.deps) {
        if (dep < 0 || dep >= static_cast<int>(i)) return wrong(absl::StrCat("depends on op ", dep));
      }
      if (!(op.seconds >= 0 && std::isfinite(op.seconds))) return wrong(absl::StrCat("takes ", op.seconds, " seconds"));
      if (op.kind != SimOpKind::kCollective) continue;
      if (op.collective < 0 || op.collective >= static_cast<int>(has.size()))
        return wrong(absl::StrCat("is of collective ", op.collective, " of ", has.size()));
      size_t& last = last_rank[static_cast<size_t>(op.collective)];
      if (last == rank + 1) return wrong(absl::StrCat("is a second one of collective ", op.collective));
      last = rank + 1;
      has[static_cast<size_t>(op.collective)] = 1;
    }
  }
  const auto without = std::find(has.begin(), has.end(), 0);
  if (without == has.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("simulator: collective ", without - has.begin(), " has no members"));
}

class Simulation {
 public:
  explicit Simulation(const SimInput& input)
      : input_(input), links_(input), ranks_(input.ranks.size()), joint_(input.collectives.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const std::vector<SimOp>& ops = input.ranks[r];
      ranks_[r].ops.assign(ops.size(), {.begin = kNever, .end = kNever});
      ranks_[r].over.assign(ops.size(), 0);
      for (size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].kind == SimOpKind::kCollective)
          joint_[static_cast<size_t>(ops[i].collective)].members.push_back({r, i});
      }
    }
  }

  absl::StatusOr<SimResult> Run() {
    for (size_t r = 0; r < ranks_.size(); ++r) Advance(r);
    while (true) {
      const double next = std::min(events_.empty() ? kNever : events_.top().at, links_.NextEnd());
      if (next == kNever) break;
      now_ = next;
      for (const int collective : links_.AdvanceTo(now_)) End(static_cast<size_t>(collective));
      while (!events_.empty() && events_.top().at <= now_) {
        const Event event = events_.top();
        events_.pop();
        if (event.collective >= 0) {
          links_.Add(event.collective);
        } else {
          OpIsOver(event.rank, event.op);
        }
      }
    }
    SimResult result;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      for (size_t i = 0; i < rank.over.size(); ++i) {
        if (rank.over[i] != 0) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("simulator: op ", i, " (", input_.ranks[r][i].name, ") of rank ", r,
                         " is never over: ranks come to their collectives in different orders"));
      }
      for (const SimInterval& op : rank.ops) result.seconds = std::max(result.seconds, op.end);
      result.ops.push_back(std::move(rank.ops));
    }
    return result;
  }

 private:
  struct Rank {
    size_t next = 0;         // op that was not begun
    bool computes = false;   // the one before it is under way
    double copies_end = 0;   // of those that were started
    std::vector<char> over;  // [ops]
    std::vector<SimInterval> ops;
    std::map<int, std::deque<int>> queues;  // collectives that it has come to and that are not over
  };
  struct Joint {
    std::vector<std::pair<size_t, size_t>> members;  // rank, op
    size_t at_head = 0;                              // of members' queues
  };
  struct Event {
    double at = 0;
    int collective = -1;  // whose bytes begin to move; else an op is over
    size_t rank = 0, op = 0;
    bool operator>(const Event& other) const { return at > other.at; }
  };

  // Begins what the rank comes to next, until it has to wait.
  void Advance(size_t r) {
    Rank& rank = ranks_[r];
    const std::vector<SimOp>& ops = input_.ranks[r];
    while (!rank.computes && rank.next < ops.size()) {
      const SimOp& op = ops[rank.next];
      if (std::any_of(op.deps.begin(), op.deps.end(),
                      [&](int dep) { return rank.over[static_cast<size_t>(dep)] == 0; }))
        return;
      const size_t i = rank.next++;
      if (op.kind == SimOpKind::kCollective) {
        std::deque<int>& queue = rank.queues[input_.collectives[static_cast<size_t>(op.collective)].queue];
        queue.push_back(op.collective);
        if (queue.size() == 1) IsAtHead(op.collective);
        continue;
      }
      const bool copies = op.kind == SimOpKind::kCopy;
      rank.ops[i].begin = copies ? std::max(now_, rank.copies_end) : now_;
      rank.ops[i].end = rank.ops[i].begin + op.seconds;
      if (copies) rank.copies_end = rank.ops[i].end;
      rank.computes = !copies;
      events_.push({.at = rank.ops[i].end, .rank = r, .op = i});
    }
  }

  void OpIsOver(size_t r, size_t op) {
    ranks_[r].over[op] = 1;
    if (input_.ranks[r][op].kind == SimOpKind::kCompute) ranks_[r].computes = false;
    Advance(r);
  }

  void IsAtHead(int collective) {
    Joint& joint = joint_[static_cast<size_t>(collective)];
    if (++joint.at_head < joint.members.size()) return;
    for (const auto& [rank, op] : joint.members) ranks_[rank].ops[op].begin = now_;
    events_.push({.at = now_ + input_.collectives[static_cast<size_t>(collective)].latency, .collective = collective});
  }

  void End(size_t collective) {
    for (const auto& [r, op] : joint_[collective].members) {
      Rank& rank = ranks_[r];
      rank.ops[op].end = now_;
      rank.over[op] = 1;
      std::deque<int>& queue = rank.queues[input_.collectives[collective].queue];
      queue.pop_front();
      if (!queue.empty()) IsAtHead(queue.front());
    }
    for (const auto& [r, op] : joint_[collective].members) Advance(r);
  }

  const SimInput& input_;
  double now_ = 0;
  LinkShares links_;
  std::vector<Rank> ranks_;
  std::vector<Joint> joint_;  // by collective
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

absl::StatusOr<SimResult> Simulate(const SimInput& input) {
  RETURN_IF_ERROR(CheckInput(input));
  return Simulation(input).Run();
}

}  // namespace switchyard::simulator
