// State that is streamed through two slots, and the file that it is in.
#include "workers/train/parameters/state_offload.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/train/fake_state_file.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Layers of two blocks, [2, 3] and [5, 1], of fp32: 3 · (6 + 5) · 4 bytes each.
constexpr int64_t kLayerBytes = 132;

std::unique_ptr<StateOffload> Make(size_t layers, FakeStateFile::Hook hook = nullptr) {
  const std::vector<std::vector<Shape>> shapes(layers, {Shape{2, 3}, Shape{5, 1}});
  auto made = StateOffload::Create(shapes, DType::kF32, [&](int64_t bytes) {
    EXPECT_EQ(bytes, static_cast<int64_t>(layers) * kLayerBytes);
    return std::make_unique<FakeStateFile>(bytes, hook);
  });
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

float ValueOf(size_t layer, size_t block, size_t tensor, int64_t i) {
  return static_cast<float>(1000 * layer + 100 * block + 10 * tensor) + static_cast<float>(i);
}

template <class Visit>
absl::Status ForEachValue(StateOffload* offload, StateAccess access, Visit visit) {
  return offload->ForEachLayer(access, [&](size_t layer, absl::Span<StateOffload::Tensors> blocks) {
    EXPECT_EQ(blocks.size(), 2u);
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (size_t t = 0; t < blocks[b].size(); ++t) {
        for (int64_t i = 0; i < blocks[b][t].view().NumElements(); ++i) {
          visit(layer, b, t, i, &blocks[b][t].data<float>()[i]);
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST(StateOffloadTest, KeepsWhatIsUpdatedAndForgetsWhatIsRead) {
  for (const size_t layers : {1u, 2u, 3u, 4u, 7u}) {
    SCOPED_TRACE(layers);
    const std::unique_ptr<StateOffload> offload = Make(layers);
    const auto zero = [](size_t, size_t, size_t, int64_t, float* value) {
      EXPECT_EQ(*value, 0);
      *value = 5;
    };
    ASSERT_TRUE(ForEachValue(offload.get(), StateAccess::kRead, zero).ok());
    std::vector<size_t> seen;
    ASSERT_TRUE(
        ForEachValue(offload.get(), StateAccess::kUpdate, [&](size_t l, size_t b, size_t t, int64_t i, float* v) {
          EXPECT_EQ(*v, 0);
          *v = ValueOf(l, b, t, i);
          if (seen.empty() || seen.back() != l) seen.push_back(l);
        }).ok());
    for (size_t l = 0; l < layers; ++l) EXPECT_EQ(seen[l], l);
    EXPECT_EQ(seen.size(), layers);
    for (int pass = 0; pass < 2; ++pass) {
      ASSERT_TRUE(
          ForEachValue(offload.get(), StateAccess::kUpdate, [](size_t l, size_t b, size_t t, int64_t i, float* v) {
            EXPECT_EQ(*v, ValueOf(l, b, t, i));
          }).ok());
    }
    // What a checkpoint reads, at its place: the second block's mean.
    const int64_t place = offload->place(layers - 1, 1);
    float mean[5];
    ASSERT_TRUE(offload->file().Read(place + 5 * 4, absl::MakeSpan(reinterpret_cast<char*>(mean), sizeof(mean))).ok());
    EXPECT_EQ(mean[3], ValueOf(layers - 1, 1, 1, 3));
    EXPECT_EQ(offload->counters().bytes, static_cast<int64_t>(layers) * kLayerBytes);
  }
}

// While a layer is used the next one is read.
TEST(StateOffloadTest, ReadsAhead) {
  absl::Notification second_read;
  const std::unique_ptr<StateOffload> offload = Make(4, [&](bool writes, int64_t at) {
    if (!writes && at == kLayerBytes && !second_read.HasBeenNotified()) second_read.Notify();
    return absl::OkStatus();
  });
  const absl::Status status =
      offload->ForEachLayer(StateAccess::kUpdate, [&](size_t layer, absl::Span<StateOffload::Tensors>) {
        if (layer == 0) {
          EXPECT_TRUE(second_read.WaitForNotificationWithTimeout(absl::Seconds(30)));
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// No more than two layers are in memory: a third is read only when the first is written.
TEST(StateOffloadTest, ALayerIsWrittenBeforeAnotherTakesItsPlace) {
  std::vector<std::pair<bool, int64_t>> calls;  // of the one thread
  const std::unique_ptr<StateOffload> offload = Make(3, [&](bool writes, int64_t at) {
    if (calls.empty() || calls.back() != std::make_pair(writes, at / kLayerBytes)) {
      calls.emplace_back(writes, at / kLayerBytes);
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(ForEachValue(offload.get(), StateAccess::kUpdate, [](auto...) {}).ok());
  EXPECT_THAT(calls, ElementsAre(std::make_pair(false, 0), std::make_pair(false, 1), std::make_pair(true, 0),
                                 std::make_pair(false, 2), std::make_pair(true, 1), std::make_pair(true, 2)));
}

TEST(StateOffloadTest, ErrorsEndThePass) {
  for (const bool writes : {false, true}) {
    for (int64_t layer = 0; layer < 4; ++layer) {
      const absl::Status error = Lost(absl::UnavailableError("Input/output error"));
      const std::unique_ptr<StateOffload> offload = Make(
          4, [&](bool w, int64_t at) { return w == writes && at / kLayerBytes == layer ? error : absl::OkStatus(); });
      EXPECT_EQ(ForEachValue(offload.get(), StateAccess::kUpdate, [](auto...) {}), error) << writes << " " << layer;
    }
  }
  const std::unique_ptr<StateOffload> offload = Make(4);
  int used = 0;
  const absl::Status status =
      offload->ForEachLayer(StateAccess::kUpdate, [&](size_t layer, absl::Span<StateOffload::Tensors>) {
        ++used;
        return layer == 1 ? absl::InternalError("no") : absl::OkStatus();
      });
  EXPECT_EQ(status, absl::InternalError("no"));
  EXPECT_EQ(used, 2);
}

TEST(StateFileTest, KeepsBytesAndLeavesNothing) {
  const model::TempDir dir;
  const auto names = [&] {
    const auto entries = std::filesystem::directory_iterator(dir.path());
    return std::distance(begin(entries), end(entries));
  };
  {
    auto file = OpenStateFile(dir.path(), 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(names(), 0) << "it has no name";
    std::string bytes(100, 'x');
    ASSERT_TRUE((*file)->Read(12345, absl::MakeSpan(bytes.data(), bytes.size())).ok());
    EXPECT_EQ(bytes, std::string(100, '\0'));
    ASSERT_TRUE((*file)->Write(12345, "some bytes").ok());
    ASSERT_TRUE((*file)->Read(12345, absl::MakeSpan(bytes.data(), 10)).ok());
    EXPECT_EQ(bytes.substr(0, 10), "some bytes");
    const absl::Status behind = (*file)->Read(1 << 20, absl::MakeSpan(bytes.data(), 1));
    EXPECT_EQ(OutcomeOf(behind), jobs::TrainOutcome::kLost);
    EXPECT_THAT(std::string(behind.message()), HasSubstr("read at byte 1048576"));
  }
  EXPECT_EQ(names(), 0);
}

TEST(StateFileTest, SaysThatThereIsNoRoom) {
  const model::TempDir dir;
  for (const absl::Status& status :
       {OpenStateFile(dir.path(), int64_t{1} << 60).status(), CheckStateRoom(dir.path(), int64_t{1} << 60, 1)}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(OutcomeOf(status), jobs::TrainOutcome::kLost);
    EXPECT_THAT(std::string(status.message()), HasSubstr("offload: " + dir.path()));
    EXPECT_THAT(std::string(status.message()), HasSubstr("1152921504606846976 bytes"));
  }
  // Files that are made at the same time share the room.
  EXPECT_TRUE(CheckStateRoom(dir.path(), 1 << 20, 2).ok());
  EXPECT_THAT(std::string(CheckStateRoom(dir.path(), 1 << 20, 1 << 30).message()), HasSubstr("ranks of this machine"));
  EXPECT_EQ(OutcomeOf(OpenStateFile(dir.path() + "/nowhere", 10).status()), jobs::TrainOutcome::kLost);
}

}  // namespace
}  // namespace switchyard::train
