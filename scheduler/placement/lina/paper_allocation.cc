#include "scheduler/placement/lina/paper_allocation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {
namespace {

// The limit of step 2.  64 experts on 16 devices would fill 4 slots each and leave none to replicate.
int MostPacked(int num_experts, int num_devices) {
  if (num_experts == num_devices) return 4;
  return std::max(4, (num_experts + num_devices - 1) / num_devices + 1);
}

// Sizes are n_e in units of 1 / total device: entry * N.
class Allocator {
 public:
  Allocator(absl::Span<const int64_t> estimate, int num_devices, int slots_per_device)
      : num_devices_(num_devices),
        slots_per_device_(slots_per_device),
        num_experts_(static_cast<int>(estimate.size())),
        devices_(num_devices) {
    total_ = popularity::TotalOf(estimate);
    const bool even = total_ == 0;
    if (even) total_ = num_experts_;
    for (const int64_t entry : estimate) size_.push_back(static_cast<__int128>(even ? 1 : entry) * num_devices);
    limit_ = std::min(slots_per_device, MostPacked(num_experts_, num_devices));
  }

  Placement Run() {
    ReplicatePopular();
    PackUnpopular();
    GiveRemainders();
    SpreadUnlisted();
    Placement placement{.num_experts = num_experts_, .slots = {}};
    for (const Device& device : devices_) {
      placement.slots.push_back(device.experts);
      placement.slots.back().resize(slots_per_device_, kEmptySlot);
    }
    return placement;
  }

 private:
  struct Device {
    std::vector<int32_t> experts;
    __int128 size = 0;
  };

  // Experts by falling size, ties by id.
  std::vector<int32_t> BySize() const {
    std::vector<int32_t> order(num_experts_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return size_[a] > size_[b]; });
    return order;
  }

  void Put(int32_t expert, int64_t device, __int128 size) {
    devices_[device].experts.push_back(expert);
    devices_[device].size += size;
  }

  void ReplicatePopular() {
    num_own_.assign(num_experts_, 0);
    int64_t replicas = 0;
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      num_own_[expert] = static_cast<int64_t>(size_[expert] / total_);
      replicas += std::max<int64_t>(1, num_own_[expert]);
    }
    const int64_t slots = static_cast<int64_t>(num_devices_) * slots_per_device_;
    for (; replicas > slots; --replicas) --*std::max_element(num_own_.begin(), num_own_.end());
    spare_replicas_ = slots - replicas;
    for (const int32_t expert : BySize()) {
      for (int64_t i = 0; i < num_own_[expert]; ++i) Put(expert, num_used_++, size_[expert] / num_own_[expert]);
    }
  }

  void PackUnpopular() {
    std::vector<int32_t> small;
    for (const int32_t expert : BySize()) {
      if (size_[expert] > 0 && size_[expert] < total_) small.push_back(expert);
    }
    std::vector<Device> bins;
    for (const int32_t expert : small) {
      auto bin = std::find_if(bins.begin(), bins.end(), [&](const Device& b) {
        return b.size + size_[expert] <= total_ && static_cast<int>(b.experts.size()) < limit_;
      });
      if (bin == bins.end()) bin = bins.insert(bins.end(), Device{});
      bin->experts.push_back(expert);
      bin->size += size_[expert];
    }
    if (num_used_ + static_cast<int64_t>(bins.size()) <= num_devices_) {
      for (Device& bin : bins) devices_[num_used_++] = std::move(bin);
      return;
    }
    const int64_t first_free = num_used_;
    num_used_ = num_devices_;
    for (const int32_t expert : small) PutWhereLeast(expert, first_free);
  }

  void GiveRemainders() {
    std::vector<int32_t> order;
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      if (num_own_[expert] > 0 && size_[expert] % total_ != 0) order.push_back(expert);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return size_[a] % total_ > size_[b] % total_; });
    for (const int32_t expert : order) {
      if (num_used_ == num_devices_ || spare_replicas_ == 0) return;
      Put(expert, num_used_++, size_[expert] / (num_own_[expert] + 1));
      --spare_replicas_;
    }
  }

  void SpreadUnlisted() {
    const int64_t first_free = num_used_;
    num_used_ = num_devices_;
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      if (size_[expert] == 0) PutWhereLeast(expert, first_free);
    }
  }

  // Among the free devices within the limit; else among all with a slot.  Least loaded, then fewest experts, then id.
  void PutWhereLeast(int32_t expert, int64_t first_free) {
    int64_t device = LeastLoaded(first_free, limit_);
    if (device < 0) device = LeastLoaded(0, slots_per_device_);
    Put(expert, device, size_[expert]);
  }

  // -1: all of [first, N) are full.
  int64_t LeastLoaded(int64_t first, int limit) const {
    int64_t best = -1;
    const auto load = [&](int64_t d) { return std::pair(devices_[d].size, devices_[d].experts.size()); };
    for (int64_t d = first; d < num_devices_; ++d) {
      if (static_cast<int>(devices_[d].experts.size()) >= limit) continue;
      if (best < 0 || load(d) < load(best)) best = d;
    }
    return best;
  }

  const int num_devices_, slots_per_device_;
  const int num_experts_;
  int limit_ = 0;
  int64_t total_ = 0;
  std::vector<__int128> size_;    // [E]
  std::vector<int64_t> num_own_;  // [E] devices of step 1
  std::vector<Device> devices_;   // [N]
  int64_t num_used_ = 0;          // devices that have something
  int64_t spare_replicas_ = 0;    // slots that no expert's first replica needs
};

}  // namespace

absl::StatusOr<Placement> AllocateAsPaper(absl::Span<const int64_t> estimate, int num_devices, int slots_per_device) {
  if (num_devices < 1 || int64_t{num_devices} * slots_per_device < static_cast<int64_t>(estimate.size())) {
    return absl::InvalidArgumentError(absl::StrCat("paper allocation: ", num_devices, " devices of ", slots_per_device,
                                                   " slots for ", estimate.size(), " experts"));
  }
  return Allocator(estimate, num_devices, slots_per_device).Run();
}

}  // namespace switchyard::placement
