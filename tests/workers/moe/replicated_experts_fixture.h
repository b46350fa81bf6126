// One rank's experts by hand, with copies that a test steers.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/placement/placement.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/moe/fake_copier.h"
#include "tests/workers/moe/moe_test_model.h"
#include "workers/moe/placement/replicated_experts.h"

namespace switchyard::test {

class ReplicatedExpertsTest : public testing::Test {
 protected:
  static constexpr int kLayers = 2, kExperts = 8;

  // An expert is copied in so many chunks.
  void Make(int num_slots, int chunks = 4) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      packed_.push_back(MoeTestModel(MoeShape{}, layer + 1).PackExperts());
    }
    moe::ReplicatedExpertsOptions options;
    options.num_layers = kLayers;
    options.num_experts = kExperts;
    options.num_slots = num_slots;
    options.expert = MoeTestModel(MoeShape{}).packed();
    bytes_ = options.expert.bytes();
    options.chunk_bytes = bytes_ / chunks;
    options.source = [this](int layer, int expert) { return Bytes(layer, expert); };
    auto made = moe::ReplicatedExperts::Create(options, std::make_unique<FakeCopier>(&copies_));
    ASSERT_TRUE(made.ok()) << made.status();
    experts_ = *std::move(made);
  }
  const char* Bytes(int layer, int expert) const {
    return packed_[static_cast<size_t>(layer)].data() + expert * bytes_;
  }
  absl::Status Fill(const std::vector<std::vector<int32_t>>& experts) {
    return experts_->Fill(experts, Soon(), [](int64_t, int64_t) { return true; });
  }
  // A row for each of these slots' experts; "1 3" if they were computed with their own weights.
  absl::StatusOr<std::string> Run(int layer, const std::vector<int32_t>& experts, absl::Time deadline = Soon()) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t expert : experts) offsets.push_back(offsets.back() + (expert == placement::kEmptySlot ? 0 : 1));
    computed_.clear();
    const absl::Status status = experts_->RunLayer(
        {.deadline = deadline}, {.index = layer}, {.experts = experts, .offsets = offsets},
        [&](const ops::WeightGroup& gate_up, const ops::WeightGroup& down) {
          for (int64_t slot = 0; slot < gate_up.size(); ++slot) {
            if (gate_up[slot] == nullptr) continue;
            const char* const bytes = Bytes(layer, experts[static_cast<size_t>(slot)]);
            EXPECT_EQ(std::memcmp(gate_up[slot]->data(), bytes, static_cast<size_t>(gate_up[slot]->bytes())), 0);
            EXPECT_NE(down[slot], nullptr);
            absl::StrAppend(&computed_, computed_.empty() ? "" : " ", experts[static_cast<size_t>(slot)]);
          }
          if (on_compute_ != nullptr) on_compute_();
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return computed_;
  }
  int64_t Copies(moe::CopyReason reason) const { return experts_->counters().copies[static_cast<size_t>(reason)]; }

  std::vector<std::vector<char>> packed_;
  int64_t bytes_ = 0;
  std::string computed_;                        // by the last Run, also by one that failed
  std::function<void()> on_compute_ = nullptr;  // after each wave
  CopyScript copies_;
  std::unique_ptr<moe::ReplicatedExperts> experts_;  // last: its thread uses the script
};

}  // namespace switchyard::test
