// Memory, queues and uploads of a device.
#include <cstring>
#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"
#include "workers/tensor/device_writer.h"
#include "workers/tensor/int_upload.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (TestDevice().is_cpu()) GTEST_SKIP() << "about devices";
  }
  const Device device_ = TestDevice();
};

std::vector<int32_t> Numbers(const Stream& stream, const TensorView& view) {
  const auto copy = CopyToHost(stream, view);
  EXPECT_TRUE(copy.ok()) << copy.status();
  return std::vector<int32_t>(copy->data<int32_t>(), copy->data<int32_t>() + view.NumElements());
}

TEST_F(DeviceTest, MemoryIsCountedAndWhatDoesNotFitIsReportedInBytes) {
  const int64_t before = MemoryInUse(DeviceKind::kCuda);
  {
    const auto tensor = Tensor::Allocate(DType::kF32, {10, 3}, device_);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), before + 120);
  }
  EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), before);
  const auto description = RegisteredBackend(DeviceKind::kCuda).Describe(0);
  ASSERT_TRUE(description.ok());
  const int64_t too_much = description->total_bytes + 1;
  const absl::Status status = Buffer::Allocate(too_much, device_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needed " + std::to_string(too_much) + " bytes, available "));
  EXPECT_TRUE(Buffer::Allocate(64, device_).ok()) << "an error that is over";
  EXPECT_EQ(RegisteredBackend(DeviceKind::kCuda).Describe(1000).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DeviceTest, BorrowedMemoryIsItsOwners) {
  const auto owner = Tensor::Allocate(DType::kF32, {10, 3}, device_);
  ASSERT_TRUE(owner.ok()) << owner.status();
  const int64_t before = MemoryInUse(DeviceKind::kCuda);
  {
    Tensor part = Tensor::Over(owner->view().Rows(4, 2));
    const Tensor moved = std::move(part);
    EXPECT_EQ(moved.bytes(), 24);
    EXPECT_EQ(moved.view().raw(), owner->view().Rows(4, 1).raw());
  }
  EXPECT_EQ(MemoryInUse(DeviceKind::kCuda), before);
}

TEST_F(DeviceTest, CopiesKeepStridedRowsApart) {
  const TestStream stream;
  Tensor numbers(DType::kI32, {3, 4});
  std::iota(numbers.data<int32_t>(), numbers.data<int32_t>() + 12, 0);
  const auto there = CopyToDevice(stream, numbers.view().Columns(1, 2));
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_THAT(Numbers(stream, *there), testing::ElementsAre(1, 2, 5, 6, 9, 10));
  EXPECT_THAT(Numbers(stream, there->view().Columns(1, 1)), testing::ElementsAre(2, 6, 10));
  EXPECT_TRUE(FillZero(stream, *there).ok());
  EXPECT_THAT(Numbers(stream, *there), testing::Each(0));
  EXPECT_EQ(CopyTensor(stream, numbers, *there).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DeviceTest, WhatComesInEveryStepComesToTheSameMemory) {
  const TestStream stream;
  Tensor numbers(DType::kI32, {30, 4});
  std::iota(numbers.data<int32_t>(), numbers.data<int32_t>() + 120, 0);
  const auto there = CopyToDevice(stream, numbers);
  ASSERT_TRUE(there.ok()) << there.status();
  HostCopy copy;
  const auto take = [&](int64_t first, int64_t count) {
    const auto found = copy.Take(stream, there->view().Rows(first, count), absl::InfiniteFuture());
    EXPECT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->shape(), Shape({count, 4}));
    for (int64_t i = 0; i < 4 * count; ++i) EXPECT_EQ(found->data<int32_t>()[i], 4 * first + i);
    return found->raw();
  };
  take(0, 3);
  const void* const grown = take(2, 20);
  for (const int64_t count : {1, 20, 0, 7}) EXPECT_EQ(take(3, count), grown) << count << " rows fit";
  take(0, 21);
  const void* const twice = take(0, 30);
  EXPECT_EQ(take(0, 21), twice) << "it grows by the double: 21 rows already had room for 40";
  EXPECT_EQ(copy.Take(stream, there->view().Columns(0, 2), absl::InfiniteFuture()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The host runs ahead: what it writes for later steps must not reach earlier ones.
TEST_F(DeviceTest, AnUploadReachesItsOwnStep) {
  const TestStream stream;
  auto upload = IntUpload::Create(device_, {4, 100});
  ASSERT_TRUE(upload.ok()) << upload.status();
  std::vector<Tensor> seen;
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(upload->Begin(stream).ok());
    const IntUpload::Array few = upload->Take(4), many = upload->Take(100);
    std::fill(few.host.begin(), few.host.end(), step);
    std::fill(many.host.begin(), many.host.end(), 10 * step);
    ASSERT_TRUE(upload->Send(stream).ok());
    for (const IntUpload::Array* array : {&few, &many}) {
      const int64_t count = array->device.size();
      auto copy = Tensor::Allocate(DType::kI32, {count}, device_);
      ASSERT_TRUE(copy.ok());
      ASSERT_TRUE(stream.get().queue()->Copy(copy->view().raw(), array->device.data(), 4 * count).ok());
      seen.push_back(*std::move(copy));
    }
  }
  for (int step = 0; step < 6; ++step) {
    EXPECT_THAT(Numbers(stream, seen[2 * step]), testing::Each(step));
    EXPECT_THAT(Numbers(stream, seen[2 * step + 1]), testing::Each(10 * step));
  }
}

// A captured graph knows addresses.
TEST_F(DeviceTest, AnArraysPlaceFollowsFromTheCountsBeforeIt) {
  const TestStream stream;
  auto upload = IntUpload::Create(device_, {100, 100, 100});
  ASSERT_TRUE(upload.ok()) << upload.status();
  const auto third = [&](int64_t first, int64_t second, int64_t count) {
    EXPECT_TRUE(upload->Begin(stream).ok());
    upload->Take(first);
    upload->Take(second);
    return upload->Take(count).device.data();
  };
  const int32_t* const place = third(3, 70, 5);
  third(100, 100, 100);
  EXPECT_EQ(third(3, 70, 100), place);
  EXPECT_EQ(third(3, 70, 5), place);
  EXPECT_NE(third(70, 70, 5), place);
}

TEST_F(DeviceTest, ManyThreadsWriteThroughAFewPieces) {
  const TestStream stream;
  constexpr int64_t kRows = 1000, kColumns = 3000;
  const auto matrix = Tensor::Allocate(DType::kI32, {kRows, kColumns}, device_);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  auto writer = DeviceWriter::Create(device_);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const int64_t begin = t * kRows / 4;
      const absl::Status status = (*writer)->Write(
          matrix->view().Rows(begin, 1).raw(), kRows / 4, kColumns * 4, [&](int64_t first, int64_t count, char* at) {
            for (int64_t i = 0; i < count * kColumns; ++i) {
              const auto value = static_cast<int32_t>((begin + first) * kColumns + i);
              std::memcpy(at + 4 * i, &value, 4);
            }
          });
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::vector<int32_t> found = Numbers(stream, *matrix);
  for (int64_t i = 0; i < kRows * kColumns; ++i) ASSERT_EQ(found[i], i);
}

TEST_F(DeviceTest, RecordedWorkRunsWhenItIsReplayedAndNotBefore) {
  const TestStream stream;
  DeviceQueue& queue = *stream.get().queue();
  Tensor host(DType::kI32, {4});
  std::iota(host.data<int32_t>(), host.data<int32_t>() + 4, 7);
  const auto from = CopyToDevice(stream, host), to = Tensor::Allocate(DType::kI32, {4}, device_);
  ASSERT_TRUE(from.ok() && to.ok());
  ASSERT_TRUE(FillZero(stream, *to).ok());
  ASSERT_TRUE(queue.BeginRecording().ok());
  ASSERT_TRUE(queue.Copy(to->view().raw(), from->view().raw(), 16).ok());
  EXPECT_THAT(std::string(queue.Synchronize(absl::InfiniteFuture()).message()), HasSubstr("being recorded"));
  EXPECT_THAT(std::string(queue.Workspace(1 << 20).status().message()), HasSubstr("being recorded"));
  auto graph = queue.EndRecording();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(Numbers(stream, *to), testing::Each(0));
  ASSERT_TRUE(queue.Run(graph->get()).ok());
  EXPECT_THAT(Numbers(stream, *to), testing::ElementsAre(7, 8, 9, 10));
}

TEST_F(DeviceTest, QueuesWaitForEachOther) {
  const TestStream first, second;
  Tensor host(DType::kI32, {1});
  host.data<int32_t>()[0] = 5;
  const auto from = CopyToDevice(first, host), to = Tensor::Allocate(DType::kI32, {1}, device_);
  ASSERT_TRUE(from.ok() && to.ok());
  ASSERT_TRUE(first.get().queue()->Copy(to->view().raw(), from->view().raw(), 4).ok());
  const auto event = first.get().queue()->Record();
  ASSERT_TRUE(event.ok());
  ASSERT_TRUE(second.get().queue()->WaitFor(**event).ok());
  EXPECT_THAT(Numbers(second, *to), testing::ElementsAre(5));
  EXPECT_TRUE(*(*event)->Passed());
}

TEST(NoDeviceTest, IsSaidSo) {
  if (!TestDevice().is_cpu()) GTEST_SKIP() << "about programs without devices";
  EXPECT_EQ(BackendOf(DeviceKind::kCuda).status().message(), "this program is built without CUDA");
  EXPECT_EQ(Buffer::Allocate(1, Device::Cuda(0)).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace switchyard
