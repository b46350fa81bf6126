#include "tests/bench/training/critical_path.h"

#include <algorithm>

namespace switchyard::bench {
namespace {

class Path {
 public:
  explicit Path(const PathInput& input) : input_(input) {}

  CriticalPath Find() {
    for (int i = 0; i < input_.layers; ++i) {
      Compute(input_.attention);
      Layer(input_.schedule->forward);
    }
    Sum(input_.head_sums);
    CriticalPath found;
    for (int i = input_.layers - 1; i >= 0; --i) {
      const absl::Duration begin = now_;
      Layer(input_.schedule->backward);
      found.moe_backward = now_ - begin;
      Sum(input_.feed_forward_sums[static_cast<size_t>(i)]);
      Compute(input_.attention * kBackwardOverForward / 2);
      Sum(input_.attention_out_sums[static_cast<size_t>(i)]);
      Compute(input_.attention * kBackwardOverForward / 2);
      Sum(input_.attention_in_sums[static_cast<size_t>(i)]);
    }
    Sum(input_.embedding_sums);
    found.step = std::max(now_, SumsEnd());
    found.compute = compute_;
    return found;
  }

 private:
  struct Interval {
    absl::Duration begin, end;
  };
  struct Released {
    absl::Duration at, takes;
  };

  void Compute(absl::Duration time) {
    now_ += time;
    compute_ += time;
  }

  void Sum(absl::Duration takes) { sums_.push_back({now_, takes}); }

  // As RunSchedule does: started in the program's order, waited for where they are needed.
  void Layer(const std::vector<pipeline::MicroOp>& ops) {
    const int chunks = input_.schedule->num_chunks;
    std::vector<absl::Duration> ends(ops.size());
    absl::Duration last;
    for (size_t i = 0; i < ops.size(); ++i) {
      const pipeline::MicroOp& op = ops[i];
      for (const int dep : op.deps) now_ = std::max(now_, ends[static_cast<size_t>(dep)]);
      Compute(input_.experts * ExpertProducts(op) / chunks);
      if (!pipeline::IsCommunicating(op.kind)) continue;
      free_ = std::max(now_, free_) + input_.all_to_all / chunks;
      busy_.push_back({free_ - input_.all_to_all / chunks, free_});
      last = ends[i] = free_;
    }
    now_ = std::max(now_, last);
  }

  // When all sums are done, one after the other in what all-to-alls leave of the link.
  absl::Duration SumsEnd() const {
    absl::Duration end;
    size_t next = 0;
    for (const Released& sum : sums_) {
      end = std::max(end, sum.at);
      absl::Duration left = sum.takes;
      while (left > absl::ZeroDuration()) {
        while (next < busy_.size() && busy_[next].end <= end) ++next;
        if (next < busy_.size() && busy_[next].begin <= end) {
          end = busy_[next].end;
          continue;
        }
        const absl::Duration gap = next < busy_.size() ? busy_[next].begin - end : absl::InfiniteDuration();
        const absl::Duration used = std::min(gap, left);
        end += used;
        left -= used;
      }
    }
    return end;
  }

  const PathInput& input_;
  absl::Duration now_, compute_;  // of the thread that computes
  absl::Duration free_;           // the link, of all-to-alls
  std::vector<Interval> busy_;    // in order
  std::vector<Released> sums_;    // in order
};

}  // namespace

CriticalPath FindCriticalPath(const PathInput& input) { return Path(input).Find(); }

}  // namespace switchyard::bench
