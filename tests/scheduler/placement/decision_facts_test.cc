// Each thing that a decision hangs on or says, altered alone, is in the digest under its name.
#include "scheduler/placement/per_step/decision_facts.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

constexpr int kExperts = 4, kDevices = 2;

// Owns what DecisionFacts borrows.
struct Facts {
  PolicyShape shape = {.mode = PlacementMode::kAgreed,
                       .top_k = 2,
                       .residents = {ContiguousPlacement(kExperts, kDevices, 1)},
                       .costs = {.copy_ps = 1, .weights_ps = 5, .row_ps = 2}};
  int64_t step = 1;
  int layer = 0;
  std::vector<int32_t> rows = std::vector<int32_t>(kDevices * kExperts, 5);
  int estimated_layer = 0;
  popularity::Popularity popularity = popularity::Popularity(kExperts, 7);
  std::vector<std::vector<int32_t>> slots = {{0, 1, 2}, {2, 3, 0}};
  std::vector<std::vector<int64_t>> in_flight = {{-1, -1, 4}, {-1, -1, -1}};
  std::vector<std::vector<int32_t>> computes = {{0, 1}, {2, 3}};
  LayerDecision decision = {.number = 9,
                            .layer = 0,
                            .split = {},
                            .demand = {.layer = 0, .choice = {}, .changes = {{0, 2, 2}}},
                            .awaited = {{0, 2, 4}},
                            .prefetch = {{.layer = 0, .choice = {}, .changes = {{1, 2, 0}}}},
                            .digest = {}};

  DecisionDigest Digest() const {
    const RowCounts counts{.num_ranks = kDevices, .num_experts = kExperts, .rows = rows};
    const LayerEstimate estimate{.layer = estimated_layer, .popularity = popularity};
    const LayerInputs inputs{.step = step, .layer = layer, .counts = counts, .estimates = {&estimate, 1}};
    const SlotTable table({.num_experts = kExperts, .slots = slots}, in_flight);
    LayerDecision said = decision;
    // Uses the same counts in every case, so that only the split differs.
    const std::vector<int32_t> fives(kDevices * kExperts, 5);
    said.split = SplitByCounts({.num_ranks = kDevices, .num_experts = kExperts, .rows = fives},
                               ReplicaIndex({.num_experts = kExperts, .slots = computes}));
    return DigestOf({.shape = shape, .inputs = inputs, .table = table, .decision = said});
  }
};

struct Case {
  const char* field;
  const char* what;
  std::function<void(Facts*)> alter;
};

TEST(DecisionFactsTest, EverythingAloneMakesADifferenceUnderItsName) {
  const Case cases[] = {
      {"constants", "mode", [](Facts* f) { f->shape.mode = PlacementMode::kAuto; }},
      {"constants", "top_k", [](Facts* f) { f->shape.top_k = 1; }},
      {"constants", "copy_ps", [](Facts* f) { f->shape.costs.copy_ps = 4; }},
      {"constants", "weights_ps", [](Facts* f) { f->shape.costs.weights_ps = 4; }},
      {"constants", "row_ps", [](Facts* f) { f->shape.costs.row_ps = 4; }},
      {"constants", "even_enough", [](Facts* f) { f->shape.even_enough = 4; }},
      {"step", "step", [](Facts* f) { f->step = 2; }},
      {"layer", "layer", [](Facts* f) { f->layer = 1; }},
      {"number", "number", [](Facts* f) { f->decision.number = 10; }},
      {"counts", "a count", [](Facts* f) { f->rows[3] = 6; }},
      {"estimates", "a popularity", [](Facts* f) { f->popularity[2] = 8; }},
      {"estimates", "its layer", [](Facts* f) { f->estimated_layer = 1; }},
      {"slots", "an expert", [](Facts* f) { f->slots[0][2] = 3; }},
      {"slots", "a copy in flight", [](Facts* f) { f->in_flight[1][2] = 4; }},
      {"split", "who computes",
       [](Facts* f) {
         f->computes = {{0, 2}, {1, 3}};
       }},
      {"awaited", "the slot", [](Facts* f) { f->decision.awaited[0].slot = 1; }},
      {"awaited", "the decision", [](Facts* f) { f->decision.awaited[0].decision = 5; }},
      {"awaited", "that there is one", [](Facts* f) { f->decision.awaited.clear(); }},
      {"demand", "an expert", [](Facts* f) { f->decision.demand.changes[0].expert = 3; }},
      {"demand", "the reason", [](Facts* f) { f->decision.demand.choice.reason = MoveReason::kPays; }},
      {"prefetch", "a device", [](Facts* f) { f->decision.prefetch[0].changes[0].device = 0; }},
      {"prefetch", "the layer", [](Facts* f) { f->decision.prefetch[0].layer = 1; }},
  };
  const DecisionDigest expected = Facts().Digest();
  EXPECT_EQ(DescribeMismatch(expected, 0, Facts().Digest(), 1), "");
  for (const Case& one : cases) {
    Facts facts;
    one.alter(&facts);
    const DecisionDigest actual = facts.Digest();
    EXPECT_NE(actual.hash(), expected.hash()) << one.what;
    const std::string mismatch = DescribeMismatch(expected, 0, actual, 1);
    EXPECT_THAT(mismatch, testing::StartsWith(std::string(one.field) + ": ")) << one.what;
    EXPECT_THAT(mismatch, testing::Not(testing::HasSubstr("also"))) << one.what << ": " << mismatch;
  }
}

}  // namespace
}  // namespace switchyard::placement
