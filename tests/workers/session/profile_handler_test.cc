// A worker's answers when it is asked for what it learned: the first rank with what it had loaded, in parts, and
// what cannot be asked for.
#include "workers/session/profile_handler.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::worker {
namespace {

using testing::HasSubstr;

constexpr popularity::RoutingShape kShape{.num_layers = 2, .num_experts = 4, .top_k = 1};
// A map of so many columns takes more than a part.
constexpr int64_t kGroup = 5, kHidden = 1 << 16;
constexpr int kLoaded = 40;  // tokens

class ServiceProfileTest : public testing::Test {
 protected:
  ServiceProfileTest() {
    const Tensor zeros(DType::kF32, {kShape.num_experts, kHidden});
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      routers_.push_back(
          *ops::PackWeight(stream_, {.n = kShape.num_experts, .k = kHidden, .dtype = DType::kF32}, zeros));
    }
    moe::RowLoadPredictorOptions options;
    options.model = "weights";
    options.shape = kShape;
    options.hidden = kHidden;
    options.dtype = DType::kF32;
    for (const ops::Weight& router : routers_) options.routers.push_back(&router);
    load_predictor_.emplace(options);
    const popularity::ProfileIdentity identity =
        load_predictor_->phase(popularity::Phase::kDecode).profiles()[0].identity();
    popularity::PathProfile counted(identity, {});
    const std::vector<int16_t> experts(static_cast<size_t>(kShape.num_layers * kLoaded), 0);
    for (int layer = 0; layer < kShape.num_layers; ++layer) {
      counted.Observe({.shape = kShape,
                       .num_tokens = kLoaded,
                       .experts = experts.data(),
                       .token_stride = 1,
                       .layer_stride = kLoaded},
                      layer);
    }
    popularity::ProfileBundle loaded = load_predictor_->EmptyBundle();
    loaded.profiles.push_back(counted);
    popularity::ProbeMap map{.layer = 0, .ahead = 1, .num_rows = kLoaded, .values = {}};
    for (int64_t i = 0; i < kShape.num_experts * (kHidden + 1); ++i) map.values.push_back(static_cast<float>(i));
    loaded.maps.push_back(std::move(map));
    EXPECT_TRUE(load_predictor_->Load(stream_, {.all = loaded}).ok());
  }

  v1::SendProfile Question(int64_t request, int64_t offset, int64_t group = kGroup) {
    v1::SendProfile message;
    message.set_group_epoch(group);
    message.set_request(request);
    message.set_offset(offset);
    return message;
  }
  v1::ProfilePart Answer() {
    for (const absl::Time end = absl::Now() + absl::Seconds(20); !answer_.has_value() && absl::Now() < end;) {
      handler_.Poll();
      std::this_thread::yield();
    }
    EXPECT_TRUE(answer_.has_value());
    EXPECT_FALSE(handler_.waiting());
    v1::ProfilePart part = *std::move(answer_);
    answer_.reset();
    return part;
  }
  absl::StatusOr<popularity::ProfileBundle> BundleOf(int rank, int num_parts) {
    handler_.Enter(kGroup, rank);
    std::string bytes;
    for (int part_idx = 0; part_idx < num_parts; ++part_idx) {
      handler_.Ask(Question(rank + 1, static_cast<int64_t>(bytes.size())));
      const v1::ProfilePart part = Answer();
      EXPECT_EQ(part.group_epoch(), kGroup);
      EXPECT_EQ(part.request(), rank + 1);
      EXPECT_EQ(part.offset(), static_cast<int64_t>(bytes.size()));
      EXPECT_EQ(part.error(), "");
      EXPECT_LE(part.data().size(), static_cast<size_t>(ProfileHandler::kPartBytes));
      bytes += part.data();
      EXPECT_EQ(part.total_bytes() == static_cast<int64_t>(bytes.size()), part_idx + 1 == num_parts);
    }
    return popularity::ProfileBundle::Parse(bytes);
  }

  ThreadPool pool_{1};
  Stream stream_ = Stream::OnCpu(&pool_);
  std::vector<ops::Weight> routers_;
  std::optional<moe::RowLoadPredictor> load_predictor_;
  bool learns_ = true;
  std::optional<v1::ProfilePart> answer_;
  ProfileHandler handler_{[this] { return learns_ ? &*load_predictor_ : nullptr; },
                          [this](v1::ProfilePart part) { answer_ = std::move(part); }};
};

TEST_F(ServiceProfileTest, WhatAllHadLoadedTheFirstReports) {
  const absl::StatusOr<popularity::ProfileBundle> first = BundleOf(0, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->model, "weights");
  int64_t tokens = 0;
  for (const popularity::PathProfile& profile : first->profiles) tokens += profile.num_tokens(0);
  EXPECT_EQ(tokens, kLoaded);
  ASSERT_EQ(first->maps.size(), 1u);
  EXPECT_EQ(first->maps[0].values.back(), static_cast<float>(kShape.num_experts * (kHidden + 1) - 1));
  const absl::StatusOr<popularity::ProfileBundle> second = BundleOf(1, 1);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->profiles.empty()) << "it has not seen a row";
}

// Between steps: a piece at a time.
TEST_F(ServiceProfileTest, IsTakenPieceByPiece) {
  handler_.Enter(kGroup, 0);
  handler_.Ask(Question(1, 0));
  for (int piece = 1; piece < load_predictor_->num_pieces(); ++piece) {
    EXPECT_TRUE(handler_.waiting());
    EXPECT_FALSE(answer_.has_value());
    handler_.Poll();
  }
  EXPECT_GT(Answer().total_bytes(), 0);
}

TEST_F(ServiceProfileTest, SaysWhatCannotBe) {
  handler_.Ask(Question(1, 0));
  EXPECT_FALSE(handler_.waiting()) << "in no group";
  handler_.Enter(kGroup, 1);
  handler_.Ask(Question(1, 0, kGroup + 1));
  EXPECT_FALSE(handler_.waiting());
  handler_.Ask(Question(7, 3));
  EXPECT_THAT(Answer().error(), HasSubstr("is not held any more"));
  handler_.Ask(Question(8, 0));
  const int64_t total = Answer().total_bytes();
  EXPECT_GT(total, 0);
  handler_.Ask(Question(8, total));
  EXPECT_THAT(Answer().error(), HasSubstr("is not held any more")) << "all of it was sent";
  learns_ = false;
  handler_.Ask(Question(9, 0));
  EXPECT_THAT(Answer().error(), HasSubstr("learns nothing: coming layers are not forecast (--forecast=always"));
  // A group that is over asks no more.
  learns_ = true;
  handler_.Ask(Question(11, 0));
  handler_.Enter(0, 0);
  handler_.Poll();
  EXPECT_FALSE(handler_.waiting());
}

}  // namespace
}  // namespace switchyard::worker
