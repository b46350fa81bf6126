#include "scheduler/placement/background/residency_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Hosts by device, without their slots.
std::vector<std::vector<int32_t>> Sets(const Placement& layer) {
  auto sets = layer.slots;
  for (auto& device : sets) {
    device.erase(std::remove(device.begin(), device.end(), kEmptySlot), device.end());
    std::sort(device.begin(), device.end());
  }
  return sets;
}

// Carries the migrations out, checking each; returns the copies.
int64_t RunMigrations(const std::vector<ResidencyMigration>& migrations, int layer_slots, std::vector<Placement> layers,
                      const std::vector<Placement>& to) {
  int64_t copies = 0;
  for (const ResidencyMigration& migration : migrations) {
    const absl::Status status = ApplyMigration(migration, layer_slots, &layers);
    EXPECT_TRUE(status.ok()) << status;
    copies += static_cast<int64_t>(migration.arrivals.size());
  }
  EXPECT_TRUE(CheckResidency(layers, layer_slots).ok()) << CheckResidency(layers, layer_slots);
  EXPECT_EQ(layers.size(), to.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) EXPECT_EQ(layers[layer].ToString(), to[layer].ToString());
  return copies;
}

TEST(ResidencyOrderTest, NothingToDo) {
  const std::vector<Placement> from{{2, {{0, kEmptySlot}, {1, kEmptySlot}}}};
  std::vector<Placement> to{{2, {{kEmptySlot, 0}, {1, kEmptySlot}}}};  // another slot is not a move
  EXPECT_THAT(OrderMoves(from, 1, {0}, &to), IsEmpty());
  EXPECT_EQ(to, from);
}

// Three full devices hand an expert round: the spare slots break the cycle, all three copies at once.
TEST(ResidencyOrderTest, SpareSlotsBreakACycle) {
  const std::vector<Placement> from{{3, {{0, -1}, {1, -1}, {2, -1}}}};
  std::vector<Placement> to{{3, {{2, -1}, {0, -1}, {1, -1}}}};
  const auto migrations = OrderMoves(from, 1, {0}, &to);
  EXPECT_EQ(RunMigrations(migrations, 1, from, to), 3);
  EXPECT_THAT(migrations, SizeIs(1));
  EXPECT_EQ(to[0].ToString(), "[- 2] [- 0] [- 1]");
}

// Two full devices exchange their experts in both layers: the one spare slot for weights takes one layer's at a time.
TEST(ResidencyOrderTest, LayersShareADevicesSpareSlot) {
  const std::vector<Placement> from(2, {2, {{0, -1}, {1, -1}}});
  std::vector<Placement> to(2, {2, {{1, -1}, {0, -1}}});
  const auto migrations = OrderMoves(from, 1, {0, 1}, &to);
  EXPECT_EQ(RunMigrations(migrations, 1, from, to), 4);
  EXPECT_THAT(migrations, SizeIs(2));
}

TEST(ResidencyOrderTest, ImpossibleMigrationsAreRefused) {
  const auto refusal = [](ResidencyMigration migration) {
    std::vector<Placement> layers{{2, {{0, -1}, {1, -1}}}};
    return std::string(ApplyMigration(migration, 1, &layers).message());
  };
  EXPECT_THAT(refusal({.arrivals = {{0, 1, 0, 0}}, .departures = {}}), HasSubstr("holds expert 0"));
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {{0, 0, 0, 0}}}), HasSubstr("no device holds expert 0"));
  EXPECT_EQ(refusal({.arrivals = {}, .departures = {{0, 0, 1, 0}}}),
            "residency: release of layer 0, expert 0 at device 1, slot 0: the slot holds expert 1");
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {{0, 0, 0, 1}}}), HasSubstr("the slot is empty"));
}

TEST(ResidencyOrderTest, AMigrationBeyondTheSpareSlotIsRefused) {
  std::vector<Placement> one{{3, {{0, -1, -1}, {1, 2, -1}}}};
  const ResidencyMigration both{.arrivals = {{0, 1, 0, 1}, {0, 2, 0, 2}}, .departures = {}};
  auto copy = one;
  EXPECT_THAT(ApplyMigration(both, 1, &copy).message(), HasSubstr("layer 0, device 0 hosts 3 experts, limit 2"));
  EXPECT_TRUE(ApplyMigration(both, 2, &one).ok());
  // A spare slot in each layer, but one for the weights of both.
  std::vector<Placement> two(2, {2, {{0, -1}, {1, -1}}});
  copy = two;
  EXPECT_THAT(ApplyMigration({.arrivals = {{0, 1, 0, 1}, {1, 1, 0, 1}}, .departures = {}}, 1, &copy).message(),
              HasSubstr("device 0 hosts 4 experts of all layers, limit 3"));
  EXPECT_TRUE(ApplyMigration({.arrivals = {{0, 1, 0, 1}, {1, 0, 1, 1}}, .departures = {}}, 1, &two).ok());
}

// A random placement of full devices, to the last slot.
std::vector<Placement> RandomLayers(std::mt19937* random, int layers, int experts, int devices, int layer_slots) {
  std::vector<Placement> result;
  for (int layer = 0; layer < layers; ++layer) {
    Placement& placement = result.emplace_back(Placement{
        experts, std::vector<std::vector<int32_t>>(devices, std::vector<int32_t>(layer_slots + 1, kEmptySlot))});
    std::vector<int> hosted(devices, 0);
    for (int expert = 0; expert < experts; ++expert) {
      int device = static_cast<int>((*random)() % devices);
      while (hosted[device] == layer_slots) device = (device + 1) % devices;
      placement.slots[device][hosted[device]++] = expert;
    }
    for (int more = 0; more < devices * 2; ++more) {
      const int expert = static_cast<int>((*random)() % experts), device = static_cast<int>((*random)() % devices);
      if (hosted[device] == layer_slots || placement.Holds(device, expert)) continue;
      placement.slots[device][hosted[device]++] = expert;
    }
  }
  return result;
}

TEST(ResidencyOrderTest, AnyTwoResidenciesAreConnectedWithinTheLimits) {
  std::mt19937 random(4);
  for (int round = 0; round < 400; ++round) {
    const int layers = 1 + static_cast<int>(random() % 3), devices = 1 + static_cast<int>(random() % 4);
    const int experts = 2 + static_cast<int>(random() % 7);
    const int layer_slots = (experts + devices - 1) / devices + static_cast<int>(random() % 2);
    const auto from = RandomLayers(&random, layers, experts, devices, layer_slots);
    const auto target = RandomLayers(&random, layers, experts, devices, layer_slots);
    ASSERT_TRUE(CheckResidency(from, layer_slots).ok() && CheckResidency(target, layer_slots).ok());
    std::vector<int> order(layers);
    std::iota(order.begin(), order.end(), 0);
    auto to = target;
    const auto migrations = OrderMoves(from, layer_slots, order, &to);
    const int64_t copies = RunMigrations(migrations, layer_slots, from, to);
    int64_t needed = 0;  // replicas that are new where they are
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(Sets(to[layer]), Sets(target[layer])) << "round " << round;
      ForEachReplica(target[layer],
                     [&](int32_t device, int32_t expert) { needed += !from[layer].Holds(device, expert); });
    }
    EXPECT_EQ(copies, needed) << "round " << round;
  }
}

}  // namespace
}  // namespace switchyard::placement
