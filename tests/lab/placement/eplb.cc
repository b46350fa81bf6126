#include "tests/lab/placement/eplb.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

// Where each item went: a pack, and its place among the pack's items.
struct Packing {
  std::vector<int> pack, rank;  // [items]
};

// weight [items], equally many items a pack.
Packing PackBalanced(const std::vector<double>& weight, int num_packs) {
  const int items = static_cast<int>(weight.size()), per_pack = items / num_packs;
  Packing packing{.pack = std::vector<int>(weight.size()), .rank = std::vector<int>(weight.size())};
  if (per_pack == 1) {  // nothing to balance: the order stays
    std::iota(packing.pack.begin(), packing.pack.end(), 0);
    return packing;
  }
  std::vector<int> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  std::vector<double> load(num_packs, 0);
  std::vector<int> filled(num_packs, 0);
  for (const int item : order) {
    int lightest = -1;
    for (int pack = 0; pack < num_packs; ++pack) {
      if (filled[pack] < per_pack && (lightest < 0 || load[pack] < load[lightest])) lightest = pack;
    }
    packing.pack[item] = lightest;
    packing.rank[item] = filled[lightest]++;
    load[lightest] += weight[item];
  }
  return packing;
}

// Which of the items each of num_replicas replicas is: first every item once, then by largest load per replica.
std::vector<int> Replicate(const std::vector<double>& weight, int num_replicas) {
  std::vector<int> item_of(weight.size()), count(weight.size(), 1);
  std::iota(item_of.begin(), item_of.end(), 0);
  while (static_cast<int>(item_of.size()) < num_replicas) {
    size_t most = 0;
    for (size_t item = 1; item < weight.size(); ++item) {
      if (weight[item] / count[item] > weight[most] / count[most]) most = item;
    }
    item_of.push_back(static_cast<int>(most));
    ++count[most];
  }
  return item_of;
}

absl::Status CheckShape(int experts, const EplbShape& shape) {
  const auto refuse = [](auto... words) { return absl::InvalidArgumentError(absl::StrCat("eplb: ", words...)); };
  if (experts < 1) return refuse("no experts");
  if (shape.num_groups < 1 || shape.num_nodes < 1 || shape.num_devices < 1) {
    return refuse("groups=", shape.num_groups, ", nodes=", shape.num_nodes, ", devices=", shape.num_devices,
                  " must be at least 1");
  }
  if (shape.num_replicas < experts) return refuse("replicas=", shape.num_replicas, " must be at least E=", experts);
  if (shape.num_replicas % shape.num_devices != 0) {
    return refuse("replicas=", shape.num_replicas, " must be a multiple of devices=", shape.num_devices);
  }
  if (shape.num_devices % shape.num_nodes != 0) {
    return refuse("devices=", shape.num_devices, " must be a multiple of nodes=", shape.num_nodes);
  }
  if (experts % shape.num_groups != 0) {
    return refuse("E=", experts, " must be a multiple of groups=", shape.num_groups);
  }
  return absl::OkStatus();
}

// The experts of each node, in the order in which its replicas are numbered.
std::vector<std::vector<int>> ExpertsOfNodes(const std::vector<double>& load, int num_groups, int num_nodes) {
  const int group_size = static_cast<int>(load.size()) / num_groups;
  std::vector<double> group_load(num_groups);
  for (int group = 0; group < num_groups; ++group) {
    const auto begin = load.begin() + group * group_size;
    group_load[group] = std::accumulate(begin, begin + group_size, 0.0);
  }
  const Packing nodes = PackBalanced(group_load, num_nodes);
  std::vector<std::vector<int>> experts(num_nodes, std::vector<int>(load.size() / num_nodes));
  for (int group = 0; group < num_groups; ++group) {
    const auto begin = experts[nodes.pack[group]].begin() + nodes.rank[group] * group_size;
    std::iota(begin, begin + group_size, group * group_size);
  }
  return experts;
}

}  // namespace

absl::StatusOr<placement::Placement> EplbPlacement(absl::Span<const int64_t> load, const EplbShape& shape) {
  if (const absl::Status status = CheckShape(static_cast<int>(load.size()), shape); !status.ok()) return status;
  const bool hierarchical = shape.num_groups % shape.num_nodes == 0;
  const int num_nodes = hierarchical ? shape.num_nodes : 1;
  const int devices_per_node = shape.num_devices / num_nodes;
  const int per_device = shape.num_replicas / shape.num_devices;
  const std::vector<double> weight(load.begin(), load.end());
  placement::Placement placement{.num_experts = static_cast<int>(load.size()), .slots = {}};
  placement.slots.assign(shape.num_devices, std::vector<int32_t>(per_device, placement::kEmptySlot));
  const auto nodes = ExpertsOfNodes(weight, hierarchical ? shape.num_groups : 1, num_nodes);
  for (int node = 0; node < num_nodes; ++node) {
    const std::vector<int>& experts = nodes[node];
    std::vector<double> node_weight;
    for (const int expert : experts) node_weight.push_back(weight[expert]);
    const std::vector<int> item_of = Replicate(node_weight, shape.num_replicas / num_nodes);
    std::vector<double> replica_weight;
    for (const int item : item_of) {
      replica_weight.push_back(node_weight[item] /
                               static_cast<double>(std::count(item_of.begin(), item_of.end(), item)));
    }
    const Packing devices = PackBalanced(replica_weight, devices_per_node);
    for (size_t replica = 0; replica < item_of.size(); ++replica) {
      placement.slots[node * devices_per_node + devices.pack[replica]][devices.rank[replica]] =
          experts[item_of[replica]];
    }
  }
  return placement;
}

placement::Placement WithoutDuplicates(placement::Placement placement) {
  for (std::vector<int32_t>& slots : placement.slots) {
    for (auto slot = slots.begin(); slot != slots.end(); ++slot) {
      if (std::find(slots.begin(), slot, *slot) != slot) *slot = placement::kEmptySlot;
    }
  }
  return placement;
}

}  // namespace switchyard
