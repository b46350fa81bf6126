// The strict reader reads back what is written.
#include "workers/checkpoint/safetensors/safetensors_writer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {
namespace {

using testing::HasSubstr;

constexpr DType kAll[] = {DType::kU8, DType::kBf16, DType::kF32, DType::kI64, DType::kF16, DType::kF64, DType::kI32};

TEST(SafetensorsWriterTest, EveryTypeAndShapeReadsBackAligned) {
  std::vector<TensorToWrite> tensors;
  std::vector<std::string> contents;
  for (const DType dtype : kAll) {
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {3}, {0, 4}, {2, 1, 3}}) {
      int64_t bytes = DTypeBytes(dtype);
      for (const int64_t dim : shape) bytes *= dim;
      contents.push_back(std::string(static_cast<size_t>(bytes), static_cast<char>('a' + contents.size())));
      // Names that JSON must escape, too.
      tensors.push_back({"layer \"" + std::to_string(contents.size()) + "\\\xc3\xa9", dtype, shape, nullptr});
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].contents = [&contents, i](ByteSink sink) {
      for (const char c : contents[i]) {
        if (const absl::Status status = sink(absl::string_view(&c, 1)); !status.ok()) return status;
      }
      return absl::OkStatus();
    };
  }
  const absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(tensors);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  std::string file, header;
  ASSERT_EQ(writer->Write([&](absl::string_view bytes) {
    file.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }),
            absl::OkStatus());
  EXPECT_EQ(static_cast<int64_t>(file.size()), writer->file_bytes());
  const auto read = ReadSafetensorsHeader(
      writer->file_bytes(),
      [&](int64_t begin, absl::Span<char> to) {
        file.copy(to.data(), to.size(), static_cast<size_t>(begin));
        return absl::OkStatus();
      },
      &header);
  ASSERT_EQ(read.status(), absl::OkStatus());
  ASSERT_EQ(read->size(), tensors.size());
  for (const auto& [name, entry] : *read) {
    size_t i = 0;
    while (tensors[i].name != name) ASSERT_LT(++i, tensors.size()) << name;
    EXPECT_EQ(*ParseSafetensorsDType(entry.dtype), tensors[i].dtype);
    EXPECT_EQ(entry.shape, tensors[i].shape);
    EXPECT_EQ(entry.begin % DTypeBytes(tensors[i].dtype), 0) << name;
    EXPECT_EQ(file.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes)), contents[i]);
  }
  EXPECT_THAT(header, HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
}

TEST(SafetensorsWriterTest, WhatNoFileCanHold) {
  const auto error = [](std::vector<TensorToWrite> tensors) {
    return std::string(SafetensorsWriter::Create(tensors).status().message());
  };
  EXPECT_THAT(error({{"a", DType::kF32, {1}, nullptr}, {"a", DType::kF32, {1}, nullptr}}), HasSubstr("tensor \"a\""));
  EXPECT_THAT(error({{"__metadata__", DType::kF32, {1}, nullptr}}), HasSubstr("reserved"));
  EXPECT_THAT(error({{"a", DType::kF32, {-1}, nullptr}}), HasSubstr("dimension -1 is negative"));
  EXPECT_THAT(error({{"a", DType::kF32, {int64_t{1} << 62}, nullptr}}), HasSubstr("overflows"));
  EXPECT_THAT(error({{"a", DType::kF32, std::vector<int64_t>(9, 1), nullptr}}), HasSubstr("rank 9, limit 8"));
}

TEST(SafetensorsWriterTest, ContentsOfAnotherSizeAndSinksThatFail) {
  const char bytes[16] = {};
  const auto write = [&](int64_t given, absl::Status sunk) {
    const std::vector<TensorToWrite> tensors = {{"a", DType::kF32, {2}, BytesAt(bytes, given)}};
    return SafetensorsWriter::Create(tensors)->Write([&](absl::string_view) { return sunk; });
  };
  EXPECT_EQ(write(8, absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(write(7, absl::OkStatus()).message(), "tensor \"a\": its contents are 7 bytes, its shape has 8");
  EXPECT_EQ(write(9, absl::OkStatus()).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(write(8, absl::ResourceExhaustedError("full")), absl::ResourceExhaustedError("full"));
}

}  // namespace
}  // namespace switchyard::checkpoint
