#include "scheduler/placement/background/residency_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

LayerResidency Layer(int experts, std::vector<std::vector<int32_t>> slots, std::vector<int> offloaded = {}) {
  LayerResidency layer{{experts, std::move(slots)}, std::vector<bool>(experts, false)};
  for (const int expert : offloaded) layer.offloaded[expert] = true;
  return layer;
}

// Hosts by device, without their slots.
std::vector<std::vector<int32_t>> Sets(const LayerResidency& layer) {
  auto sets = layer.placement.slots;
  for (auto& device : sets) {
    device.erase(std::remove(device.begin(), device.end(), kEmptySlot), device.end());
    std::sort(device.begin(), device.end());
  }
  return sets;
}

// Carries the migrations out, checking each; returns the moves with weights.
int64_t RunMigrations(const std::vector<ResidencyMigration>& migrations, const ResidencyLimits& limits,
                      std::vector<LayerResidency> layers, const std::vector<LayerResidency>& to) {
  int64_t copies = 0;
  for (const ResidencyMigration& migration : migrations) {
    const absl::Status status = ApplyMigration(migration, limits, &layers);
    EXPECT_TRUE(status.ok()) << status;
    for (const ResidencyMove& move : migration.arrivals) {
      copies += move.kind == MoveKind::kCopy || move.kind == MoveKind::kLoad;
    }
  }
  EXPECT_TRUE(CheckResidency(layers, limits).ok()) << CheckResidency(layers, limits);
  EXPECT_EQ(layers.size(), to.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    EXPECT_EQ(layers[layer].placement.ToString(), to[layer].placement.ToString());
    EXPECT_EQ(layers[layer].offloaded, to[layer].offloaded);
  }
  return copies;
}

TEST(ResidencyOrderTest, NothingToDo) {
  const std::vector<LayerResidency> from{Layer(2, {{0, kEmptySlot}, {1, kEmptySlot}})};
  std::vector<LayerResidency> to{Layer(2, {{kEmptySlot, 0}, {1, kEmptySlot}})};  // another slot is not a move
  EXPECT_THAT(OrderMoves(from, {1, 1}, {0}, &to), IsEmpty());
  EXPECT_EQ(to, from);
}

// Three full devices hand an expert round: the spare slots break the cycle, all three copies at once.
TEST(ResidencyOrderTest, SpareSlotsBreakACycle) {
  const std::vector<LayerResidency> from{Layer(3, {{0, -1}, {1, -1}, {2, -1}})};
  std::vector<LayerResidency> to{Layer(3, {{2, -1}, {0, -1}, {1, -1}})};
  const auto migrations = OrderMoves(from, {1, 1}, {0}, &to);
  EXPECT_EQ(RunMigrations(migrations, {1, 1}, from, to), 3);
  EXPECT_THAT(migrations, SizeIs(1));
  EXPECT_EQ(to[0].placement.ToString(), "[- 2] [- 0] [- 1]");
}

// Memory is full in both devices; each layer's move frees what the other's needs.
TEST(ResidencyOrderTest, AChainCrossesLayersWhereMemoryIsShared) {
  const std::vector<LayerResidency> from{Layer(2, {{0, 1, -1, -1}, {-1, -1, -1, -1}}),
                                         Layer(2, {{-1, -1, -1, -1}, {0, 1, -1, -1}})};
  std::vector<LayerResidency> to{Layer(2, {{-1, -1, -1, -1}, {0, 1, -1, -1}}),
                                 Layer(2, {{0, 1, -1, -1}, {-1, -1, -1, -1}})};
  const ResidencyLimits limits{.device_slots = 2, .layer_slots = 3};
  const auto migrations = OrderMoves(from, limits, {0, 1}, &to);
  EXPECT_EQ(RunMigrations(migrations, limits, from, to), 4);
}

// An expert whose memory is taken keeps its host; another is loaded into what it leaves, in the migration after.
TEST(ResidencyOrderTest, OffloadAndLoad) {
  const std::vector<LayerResidency> from{Layer(3, {{0, 1, -1}, {2, -1, -1}}, {1})};
  std::vector<LayerResidency> to{Layer(3, {{0, 1, -1}, {2, -1, -1}}, {0})};
  const ResidencyLimits limits{.device_slots = 1, .layer_slots = 2};
  const auto migrations = OrderMoves(from, limits, {0}, &to);
  EXPECT_EQ(RunMigrations(migrations, limits, from, to), 1);
  ASSERT_THAT(migrations, SizeIs(1));
  EXPECT_THAT(migrations[0].arrivals, ElementsAre(ResidencyMove{MoveKind::kLoad, 0, 1, 0, 1}));
  EXPECT_THAT(migrations[0].departures, ElementsAre(ResidencyMove{MoveKind::kOffload, 0, 0, 0, 0}));
}

TEST(ResidencyOrderTest, ImpossibleMigrationsAreRefused) {
  const ResidencyLimits limits{1, 1};
  const auto refusal = [&](ResidencyMigration migration) {
    std::vector<LayerResidency> layers{Layer(2, {{0, -1}, {1, -1}})};
    return std::string(ApplyMigration(migration, limits, &layers).message());
  };
  EXPECT_THAT(refusal({.arrivals = {{MoveKind::kCopy, 0, 1, 0, 0}}, .departures = {}}), HasSubstr("holds expert 0"));
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {{MoveKind::kRelease, 0, 0, 0, 0}}}),
              HasSubstr("no device holds expert 0"));
  EXPECT_THAT(refusal({.arrivals = {{MoveKind::kLoad, 0, 0, 0, 0}}, .departures = {}}), HasSubstr("not offloaded"));
  EXPECT_THAT(refusal({.arrivals = {}, .departures = {{MoveKind::kOffload, 0, 1, 0, 0}}}), HasSubstr("not there"));
  EXPECT_THAT(refusal({.arrivals = {{MoveKind::kRelease, 0, 0, 0, 0}}, .departures = {}}), HasSubstr("not an arrival"));
}

TEST(ResidencyOrderTest, AMigrationBeyondTheSpareSlotIsRefused) {
  std::vector<LayerResidency> layers{Layer(3, {{0, -1, -1}, {1, 2, -1}})};
  const ResidencyMigration migration{.arrivals = {{MoveKind::kCopy, 0, 1, 0, 1}, {MoveKind::kCopy, 0, 2, 0, 2}},
                                     .departures = {}};
  auto copy = layers;
  EXPECT_THAT(ApplyMigration(migration, {.device_slots = 3, .layer_slots = 1}, &copy).message(),
              HasSubstr("layer 0, device 0 hosts 3 experts, limit 2"));
  copy = layers;
  EXPECT_THAT(ApplyMigration(migration, {.device_slots = 1, .layer_slots = 2}, &copy).message(),
              HasSubstr("device 0 has 3 experts in memory, limit 2"));
  EXPECT_TRUE(ApplyMigration(migration, {.device_slots = 2, .layer_slots = 2}, &layers).ok());
}

// A random residency of full devices: memory to the last slot, layers to the last slot.
std::vector<LayerResidency> RandomLayers(std::mt19937* random, int layers, int experts, int devices,
                                         const ResidencyLimits& limits) {
  std::vector<LayerResidency> result;
  std::vector<int> memory(devices, limits.device_slots);
  for (int layer = 0; layer < layers; ++layer) {
    result.push_back(Layer(
        experts, std::vector<std::vector<int32_t>>(devices, std::vector<int32_t>(limits.layer_slots + 1, kEmptySlot))));
    LayerResidency& residency = result.back();
    std::vector<int> hosted(devices, 0);
    const auto add = [&](int expert, int device) {
      residency.placement.slots[device][hosted[device]++] = expert;
      if (!residency.offloaded[expert]) --memory[device];
    };
    for (int expert = 0; expert < experts; ++expert) {
      int device = static_cast<int>((*random)() % devices);
      while (hosted[device] == limits.layer_slots) device = (device + 1) % devices;
      residency.offloaded[expert] = memory[device] == 0;
      add(expert, device);
    }
    for (int more = 0; more < devices * 2; ++more) {
      const int expert = static_cast<int>((*random)() % experts), device = static_cast<int>((*random)() % devices);
      if (residency.offloaded[expert] || memory[device] == 0 || hosted[device] == limits.layer_slots) continue;
      if (!residency.placement.Holds(device, expert)) add(expert, device);
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
    const ResidencyLimits limits{1 + static_cast<int>(random() % (layers * layer_slots)), layer_slots};
    const auto from = RandomLayers(&random, layers, experts, devices, limits);
    const auto target = RandomLayers(&random, layers, experts, devices, limits);
    ASSERT_TRUE(CheckResidency(from, limits).ok() && CheckResidency(target, limits).ok());
    std::vector<int> order(layers);
    std::iota(order.begin(), order.end(), 0);
    auto to = target;
    const auto migrations = OrderMoves(from, limits, order, &to);
    const int64_t copies = RunMigrations(migrations, limits, from, to);
    int64_t needed = 0;  // memory that is new where it is
    for (int layer = 0; layer < layers; ++layer) {
      EXPECT_EQ(Sets(to[layer]), Sets(target[layer])) << "round " << round;
      EXPECT_EQ(to[layer].offloaded, target[layer].offloaded);
      for (int expert = 0; expert < experts; ++expert) {
        if (target[layer].offloaded[expert]) continue;
        for (const int device : target[layer].placement.DevicesOf(expert)) {
          needed += from[layer].offloaded[expert] || !from[layer].placement.Holds(device, expert);
        }
      }
    }
    EXPECT_EQ(copies, needed) << "round " << round;
  }
}

}  // namespace
}  // namespace switchyard::placement
