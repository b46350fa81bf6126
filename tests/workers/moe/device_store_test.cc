// An expert store whose slots are on the test's device: what arrives, and that no slot is written while something that
// was enqueued before still reads it.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "workers/moe/experts/device_expert_copier.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/tensor/copy.h"

namespace switchyard::moe {
namespace {

constexpr int kExperts = 4;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// pin: whether the source can be pinned.
class DeviceStoreTest : public testing::TestWithParam<bool> {
 protected:
  // Experts of more than two of a copier's pieces.
  DeviceStoreTest() : expert_(512, 384, DType::kBf16, TestDevice().kind) {}

  void Make(int num_slots, int64_t chunk_bytes) {
    const ExpertSource source = {.begin = host_.data(), .bytes = static_cast<int64_t>(host_.size())};
    if (!GetParam()) {  // what is pinned already cannot be again
      auto before = MakeExpertCopier(TestDevice(), source);
      ASSERT_TRUE(before.ok()) << before.status();
      before_ = *std::move(before);
    }
    auto copier = MakeExpertCopier(TestDevice(), source);
    ASSERT_TRUE(copier.ok()) << copier.status();
    copier_ = copier->get();
    if (!TestDevice().is_cpu()) {
      EXPECT_EQ(copier_->path() != CopyPath::kPinnedPieces, GetParam()) << CopyPathName(copier_->path());
    }
    ExpertStoreOptions options;
    options.expert = expert_;
    options.num_slots = num_slots;
    options.device = TestDevice();
    options.chunk_bytes = chunk_bytes;
    options.source = [this](const ExpertId& id) { return At(id.expert); };
    auto store = ExpertStore::Create(options, *std::move(copier));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void SetUp() override {
    host_.resize(static_cast<size_t>(expert_.bytes) * kExperts);
    for (size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<char>(i * 31 + i / expert_.bytes * 7 + i / 4096);
  }
  const char* At(int expert) const { return host_.data() + expert * expert_.bytes; }
  ExpertLease Take(int expert) {
    const ExpertId id = {.expert = expert};
    auto lease = store_->Acquire({&id, 1}, Soon());
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *std::move(lease) : ExpertLease();
  }
  TensorView BytesOf(const ops::Weight& weight) const {
    return TensorView(const_cast<void*>(weight.data()), DType::kU8, {weight.bytes()}, weight.device());
  }
  void ExpectHolds(const ExpertLease& lease, int expert) {
    const auto gate_up = CopyToHost(stream_, BytesOf(lease.gate_up(0))),
               down = CopyToHost(stream_, BytesOf(lease.down(0)));
    ASSERT_TRUE(gate_up.ok() && down.ok());
    EXPECT_EQ(std::memcmp(gate_up->view().raw(), At(expert), static_cast<size_t>(gate_up->bytes())), 0);
    EXPECT_EQ(std::memcmp(down->view().raw(), At(expert) + expert_.down_offset, static_cast<size_t>(down->bytes())), 0);
  }

  const TestStream stream_;
  const PackedExpert expert_;
  std::vector<char> host_;
  std::unique_ptr<ExpertCopier> before_;
  ExpertCopier* copier_ = nullptr;  // the store's
  std::unique_ptr<ExpertStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Sources, DeviceStoreTest, testing::Bool(),
                         [](const auto& i) { return i.param ? "pinned" : "by_pieces"; });

TEST_P(DeviceStoreTest, BytesArriveWhateverTheChunks) {
  for (const int64_t chunk : {expert_.bytes, expert_.bytes / 4, int64_t{100000}}) {
    store_.reset();
    before_.reset();
    Make(2, chunk);
    for (int expert = 0; expert < kExperts; ++expert) {
      ASSERT_TRUE(store_->Evict(expert % 2).ok());
      ASSERT_TRUE(store_->StartCopy({.expert = expert}, expert % 2, CopyPriority::kDemand).ok());
      const ExpertLease lease = Take(expert);
      ExpectHolds(lease, expert);
    }
    EXPECT_EQ(store_->counters().copied_bytes, kExperts * expert_.bytes);
  }
}

TEST_P(DeviceStoreTest, ASlotIsNotWrittenWhileItIsRead) {
  Make(1, expert_.bytes / 3);
  auto seen = PinnedBuffer::Allocate(kExperts * expert_.bytes, TestDevice().kind);
  ASSERT_TRUE(seen.ok());
  for (int expert = 0; expert < kExperts; ++expert) {
    ASSERT_TRUE(store_->Evict(0).ok());
    ASSERT_TRUE(store_->StartCopy({.expert = expert}, 0, CopyPriority::kDemand).ok());
    ExpertLease lease = Take(expert);
    // Enqueued now; on a device it runs later, when the host has asked for the next expert.
    const TensorView gate_up = BytesOf(lease.gate_up(0));
    ASSERT_TRUE(
        CopyTensor(stream_, gate_up, TensorView(seen->data() + expert * expert_.bytes, DType::kU8, gate_up.shape()))
            .ok());
    ASSERT_TRUE(lease.ReleaseBehind(&stream_.get()).ok());
    EXPECT_EQ(lease.size(), 0);
  }
  ASSERT_TRUE(Synchronize(stream_, Soon()).ok());
  for (int expert = 0; expert < kExperts; ++expert) {
    EXPECT_EQ(std::memcmp(seen->data() + expert * expert_.bytes, At(expert),
                          static_cast<size_t>(ops::PackedBytes(expert_.gate_up, TestDevice().kind))),
              0)
        << "expert " << expert;
  }
}

}  // namespace
}  // namespace switchyard::moe
