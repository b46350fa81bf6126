// PackedUploads on an emulated device: several threads, weights that stay incomplete, errors.
#include "workers/model/weights/packed_uploads.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/devices/test_device.h"
#include "workers/tensor/copy.h"

namespace switchyard::model {
namespace {

constexpr int64_t kRows = 130, kColumns = 96;

ops::WeightDesc Desc() {
  return {.n = kRows, .k = kColumns, .dtype = DType::kBf16, .format = ops::WeightFormat::kInt4};
}

Tensor Values() {
  Tensor values(DType::kF32, {kRows, kColumns});
  for (int64_t i = 0; i < kRows * kColumns; ++i) values.data<float>()[i] = static_cast<float>((i * 37) % 101) - 50;
  return values;
}

// The weight's bytes in the device's memory.
std::vector<char> BytesOf(const ops::Weight& weight, const Stream& stream) {
  const TensorView there(const_cast<void*>(weight.data()), DType::kU8, {weight.bytes()}, weight.device());
  const Tensor here = *CopyToHost(stream, there);
  const char* const begin = static_cast<const char*>(here.view().raw());
  return {begin, begin + weight.bytes()};
}

TEST(PackedUploadsTest, WeightsOfSeveralThreadsAreThoseOfOne) {
  const TestStream stream;
  const Tensor values = Values();
  ops::Weight expected(Desc());
  ASSERT_TRUE(expected.PackRows(0, values).ok());
  const auto* const begin = static_cast<const char*>(expected.data());
  const std::vector<char> bytes(begin, begin + expected.bytes());
  auto writer = DeviceWriter::Create(TestDevice());
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<ops::Weight> weights;
  for (int i = 0; i < 3; ++i) weights.emplace_back(Desc(), TestDevice());
  {
    PackedUploads uploads(writer->get());
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (ops::Weight& weight : weights) {
          for (int64_t row = t * 7; row < kRows; row += 4 * 7) {
            const int64_t count = std::min<int64_t>(7, kRows - row);
            const absl::Status status = uploads.Pack(&weight, count, [&](ops::Weight* host) {
              EXPECT_TRUE(host->device().is_cpu());
              return host->PackRows(row, values.view().Rows(row, count));
            });
            EXPECT_TRUE(status.ok()) << status;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  for (const ops::Weight& weight : weights) EXPECT_EQ(BytesOf(weight, stream), bytes);
}

TEST(PackedUploadsTest, AnErrorIsThePacksAndNothingIsCopied) {
  const TestStream stream;
  const Tensor values = Values();
  auto writer = DeviceWriter::Create(TestDevice());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ops::Weight weight(Desc(), TestDevice());
  const std::vector<char> before = BytesOf(weight, stream);
  const int64_t in_use = MemoryInUse(DeviceKind::kCpu);
  {
    PackedUploads uploads(writer->get());
    const auto first = [&](ops::Weight* host) { return host->PackRows(0, values.view().Rows(0, 100)); };
    ASSERT_TRUE(uploads.Pack(&weight, 100, first).ok());
    EXPECT_GT(MemoryInUse(DeviceKind::kCpu), in_use);
    const auto fails = [](ops::Weight*) { return absl::DataLossError("the file ends"); };
    EXPECT_EQ(uploads.Pack(&weight, 30, fails).message(), "the file ends");
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(BytesOf(weight, stream), before);
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), in_use) << "a weight that stays incomplete is freed";
}

TEST(PackedUploadsTest, PlainWeightsAndTheHostsAreTheirOwn) {
  auto writer = DeviceWriter::Create(TestDevice());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ops::WeightDesc desc = Desc();
  desc.format = ops::WeightFormat::kPlain;
  ops::Weight plain(desc, TestDevice()), here(Desc());
  const auto is = [](ops::Weight* wanted) {
    return [wanted](ops::Weight* host) {
      EXPECT_EQ(host, wanted);
      return absl::OkStatus();
    };
  };
  EXPECT_TRUE(PackedUploads(writer->get()).Pack(&plain, 1, is(&plain)).ok());
  EXPECT_TRUE(PackedUploads(nullptr).Pack(&here, 1, is(&here)).ok());
}

}  // namespace
}  // namespace switchyard::model
