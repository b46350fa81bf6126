// Which way experts take from the host's memory to a device, as what the driver can pin allows.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cuda_emulation/control.h"
#include "tests/devices/test_device.h"
#include "workers/moe/experts/device_expert_copier.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/moe/experts/timed_copier.h"

namespace switchyard::moe {
namespace {

class CopyPathTest : public testing::Test {
 protected:
  CopyPathTest() : expert_(64, 48, DType::kBf16, TestDevice().kind), host_(static_cast<size_t>(expert_.bytes), 'e') {}
  ~CopyPathTest() override { cuda_emulation::Reset(); }

  // Of a store that copies an expert; expects that it arrives.
  CopyPath PathOfACopy() {
    auto plain = MakeExpertCopier(TestDevice(), {.begin = host_.data(), .bytes = static_cast<int64_t>(host_.size())});
    EXPECT_TRUE(plain.ok()) << plain.status();
    ExpertStoreOptions options;
    options.expert = expert_;
    options.num_slots = 1;
    options.device = TestDevice();
    options.source = [this](const ExpertId&) { return host_.data(); };
    auto store = ExpertStore::Create(options, std::make_unique<TimedCopier>(*std::move(plain)));
    EXPECT_TRUE(store.ok()) << store.status();
    const ExpertId id = {};
    EXPECT_TRUE((*store)->StartCopy(id, 0, CopyPriority::kDemand).ok());
    EXPECT_TRUE((*store)->Acquire({&id, 1}, absl::Now() + absl::Seconds(20)).ok());
    return (*store)->counters().path;
  }

  const PackedExpert expert_;
  std::vector<char> host_;
};

TEST_F(CopyPathTest, IsTheBestThatTheDriverAllows) {
  EXPECT_EQ(PathOfACopy(), CopyPath::kRegisteredReadOnly);
  cuda_emulation::SetRegistersReadOnly(false);
  EXPECT_EQ(PathOfACopy(), CopyPath::kRegistered);
  cuda_emulation::FailAt("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(PathOfACopy(), CopyPath::kPinnedPieces);
}

TEST_F(CopyPathTest, BothRegistrationsMayFail) {
  cuda_emulation::FailAt("cudaHostRegister", 1, cudaErrorNotSupported);
  cuda_emulation::FailAt("cudaHostRegister", 2, cudaErrorNotSupported);
  EXPECT_EQ(PathOfACopy(), CopyPath::kPinnedPieces);
}

}  // namespace
}  // namespace switchyard::moe
