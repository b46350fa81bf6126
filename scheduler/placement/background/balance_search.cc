#include "scheduler/placement/background/balance_search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

constexpr int kSearchRounds = 6, kJudgeRounds = 40;
constexpr int kMaxChanges = 128;
// Saved seconds have to exceed this share of the layer's cost; below it they are noise of the judging draws.
constexpr double kLeastSaving = 0.005;

struct HostChange {
  bool add;
  int32_t expert, device;
};
// Additions first, so that no expert is without a host in between.
using Change = std::vector<HostChange>;

// A placement that is being changed: its loads in all cases, its slots, and the cost of getting there.
class Draft {
 public:
  Draft(const BalanceProblem& problem, const std::shared_ptr<const CaseRows>& rows, int rounds)
      : problem_(&problem), split_(*problem.present, rows), guests_(split_.num_devices()) {
    const Placement& present = *problem.present;
    was_host_.assign(static_cast<size_t>(present.num_experts) * present.num_devices(), false);
    ForEachReplica(present, [&](int32_t device, int32_t expert) {
      guests_[device].push_back(expert);
      was_host_[static_cast<size_t>(expert) * present.num_devices() + device] = true;
    });
    split_.Finalize(rounds);
  }

  bool WasHost(int expert, int device) const {
    return was_host_[static_cast<size_t>(expert) * split_.num_devices() + device];
  }
  // Whether slots suffice, experts are where the change wants them, and each keeps a host.
  bool Allows(const Change& change) const {
    for (const HostChange& host : change) {
      if (host.add == split_.Hosts(host.device, host.expert)) return false;
      int slots = static_cast<int>(guests_[host.device].size()), hosts = split_.num_hosts(host.expert);
      for (const HostChange& other : change) {
        if (other.device == host.device) slots += other.add ? 1 : -1;
        if (other.expert == host.expert) hosts += other.add ? 1 : -1;
      }
      if (hosts < 1 || slots > problem_->layer_slots) return false;
    }
    return true;
  }
  // REQUIRES: Allows(change).
  void Apply(const Change& change, int rounds) {
    for (const HostChange& host : change) {
      std::vector<int32_t>& guests = guests_[host.device];
      if (host.add) {
        split_.AddHost(host.expert, host.device);
        guests.push_back(host.expert);
      } else {
        split_.RemoveHost(host.expert, host.device);
        guests.erase(std::find(guests.begin(), guests.end(), host.expert));
      }
      if (!WasHost(host.expert, host.device)) copies_ += host.add ? 1 : -1;
    }
    split_.Finalize(rounds);
  }

  // On copies, in seconds.
  double Spent() const { return problem_->seconds_per_copy * copies_; }
  double Cost() const { return problem_->seconds_per_load * split_.Busiest() + Spent(); }

  const SplitCases& split() const { return split_; }
  const std::vector<int32_t>& guests(int device) const { return guests_[device]; }
  bool Full(int device) const { return static_cast<int>(guests_[device].size()) >= problem_->layer_slots; }
  int copies() const { return copies_; }
  // Experts that stay keep their slots.
  Placement ToPlacement() const {
    Placement placement{.num_experts = problem_->present->num_experts, .slots = guests_};
    for (std::vector<int32_t>& slots : placement.slots) slots.resize(problem_->layer_slots + 1, kEmptySlot);
    return KeepSlots(*problem_->present, std::move(placement));
  }

 private:
  const BalanceProblem* problem_;
  SplitCases split_;
  std::vector<std::vector<int32_t>> guests_;  // [R]
  std::vector<bool> was_host_;                // [E, R]
  int copies_ = 0;
};

class Search {
 public:
  explicit Search(const BalanceProblem& problem) : draft_(problem, problem.search, kJudgeRounds) {}

  // Returns the changes in the order in which they were found.  Ends when kPatience in a row did not pay, by the draws
  // searched on.
  std::vector<Change> Run() {
    std::vector<Change> changes;
    double cheapest = draft_.Cost();
    for (int in_vain = 0; in_vain < kPatience && static_cast<int>(changes.size()) < kMaxChanges;) {
      std::optional<Change> best = Best();
      if (!best) break;
      draft_.Apply(*best, kJudgeRounds);
      changes.push_back(*std::move(best));
      ++in_vain;
      if (draft_.Cost() < cheapest) cheapest = draft_.Cost(), in_vain = 0;
    }
    return changes;
  }

 private:
  static constexpr int kHot = 3, kCool = 4, kSmaller = 3, kPatience = 6;
  static constexpr double kLeastGain = 1e-4;

  // The change that lowers the potential most for each copy.
  std::optional<Change> Best() {
    potential_ = draft_.split().Potential();
    loads_ = draft_.split().MeanLoads();
    best_gain_ = kLeastGain;
    best_.reset();
    const std::vector<double> pressure = draft_.split().Pressures();
    std::vector<int> hot(loads_.size()), cool(loads_.size());
    std::iota(hot.begin(), hot.end(), 0);
    cool = hot;
    std::stable_sort(hot.begin(), hot.end(), [&](int a, int b) { return pressure[a] > pressure[b]; });
    std::stable_sort(cool.begin(), cool.end(), [&](int a, int b) { return loads_[a] < loads_[b]; });
    for (int h = 0; h < std::min<int>(kHot, static_cast<int>(hot.size())); ++h) {
      for (const int32_t expert : draft_.guests(hot[h])) Relieve(hot[h], expert, cool);
    }
    return best_;
  }

  void Relieve(int hot, int32_t expert, const std::vector<int>& cool) {
    int tried = 0;
    for (const int device : cool) {
      if (tried == kCool || loads_[device] >= loads_[hot]) return;
      if (device == hot || draft_.split().Hosts(device, expert)) continue;
      ++tried;
      if (!draft_.Full(device)) {
        Try({{true, expert, device}});
        Try({{true, expert, device}, {false, expert, hot}});
      } else {
        TakeSlot(hot, expert, device);
      }
    }
  }

  // Where the device is full, something has to leave it.
  void TakeSlot(int hot, int32_t expert, int device) {
    const SplitCases& split = draft_.split();
    const double rows = split.Rows(expert, hot), wanted = (loads_[hot] - loads_[device]) / 2;
    std::vector<std::pair<double, int32_t>> smaller;  // by how far an exchange is from levelling the two
    for (const int32_t other : draft_.guests(device)) {
      if (split.num_hosts(other) > 1) Try({{true, expert, device}, {false, other, device}});
      const double less = rows - split.Rows(other, device);
      if (less > 0) smaller.push_back({less > wanted ? less - wanted : wanted - less, other});
    }
    std::sort(smaller.begin(), smaller.end());
    if (smaller.size() > kSmaller) smaller.resize(kSmaller);
    for (const auto& [distance, other] : smaller) {
      Try({{true, expert, device}, {true, other, hot}, {false, expert, hot}, {false, other, device}});
      Try({{true, expert, device}, {true, other, hot}, {false, other, device}});
    }
  }

  void Try(const Change& change) {
    if (!draft_.Allows(change)) return;
    Draft tried = draft_;
    tried.Apply(change, kSearchRounds);
    // Putting back an expert that was there before costs nothing.
    const int copies = std::max(1, tried.copies() - draft_.copies());
    const double gain = (potential_ - tried.split().Potential()) / copies;
    if (gain <= best_gain_) return;
    best_gain_ = gain;
    best_ = change;
  }

  Draft draft_;
  double potential_ = 0, best_gain_ = 0;
  std::vector<double> loads_;
  std::optional<Change> best_;
};

// Takes changes back, one at a time, as long as the placement is cheaper without.
class Pruning {
 public:
  Pruning(const BalanceProblem& problem, Draft draft) : problem_(problem), draft_(std::move(draft)) {}

  Draft Run() {
    for (bool again = true; again;) {
      again = false;
      for (int device = 0; device < draft_.split().num_devices(); ++device) {
        const std::vector<int32_t> guests = draft_.guests(device);
        for (const int32_t expert : guests) {
          if (!draft_.WasHost(expert, device) && draft_.split().Hosts(device, expert)) again |= Undo(expert, device);
        }
      }
    }
    return std::move(draft_);
  }

 private:
  bool Undo(int32_t expert, int device) {
    if (Take({{false, expert, device}})) return true;
    std::vector<int32_t> left;  // this device for ever, so far
    for (const int32_t other : problem_.present->slots[device]) {
      if (other != kEmptySlot && !draft_.split().Hosts(device, other)) left.push_back(other);
    }
    for (const int32_t other : left) {
      if (Take({{true, other, device}, {false, expert, device}})) return true;
    }
    // It goes back to a device that it left, perhaps in exchange for an expert that came there.
    for (const int32_t home : problem_.present->DevicesOf(expert)) {
      if (Take({{true, expert, home}, {false, expert, device}})) return true;
      for (const int32_t other : left) {
        if (Take({{true, expert, home}, {true, other, device}, {false, expert, device}, {false, other, home}})) {
          return true;
        }
      }
    }
    return false;
  }

  bool Take(const Change& change) {
    if (!draft_.Allows(change)) return false;
    Draft tried = draft_;
    tried.Apply(change, kJudgeRounds);
    if (tried.copies() >= draft_.copies() || tried.Cost() >= draft_.Cost()) return false;
    draft_ = std::move(tried);
    return true;
  }

  const BalanceProblem& problem_;
  Draft draft_;
};

}  // namespace

BalanceResult SearchBalance(const BalanceProblem& problem) {
  const Draft present(problem, problem.judge, kJudgeRounds);
  BalanceResult result{.placement = *problem.present, .facts = {}};
  LayerFacts& facts = result.facts;
  facts.before = facts.after = present.split().Busiest();
  const std::vector<Change> changes = Search(problem).Run();
  if (changes.empty()) return result;
  Draft draft = present, best = present;
  for (const Change& change : changes) {
    if (!draft.Allows(change)) break;
    draft.Apply(change, kJudgeRounds);
    if (draft.Cost() < best.Cost()) best = draft;
    const double saving = problem.seconds_per_load * (facts.before - draft.split().Busiest());
    if (facts.refused_saving <= saving) facts.refused_saving = saving, facts.refused_cost = draft.Spent();
  }
  best = Pruning(problem, std::move(best)).Run();
  facts.stop = static_cast<int>(changes.size()) == kMaxChanges ? StopReason::kLimit : StopReason::kDoesNotPay;
  if (present.Cost() - best.Cost() < kLeastSaving * problem.seconds_per_load) return result;
  facts.after = best.split().Busiest();
  facts.saved_seconds = problem.seconds_per_load * (facts.before - facts.after);
  facts.spent_seconds = best.Spent();
  result.placement = best.ToPlacement();
  return result;
}

}  // namespace switchyard::placement
