// Matrices whose stored numbers a weight holds as they are (MatrixReader::own_format): its values are those that are
// decoded, which quantized_matrix_test compares with references.
#include <cmath>
#include <fstream>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/gguf/block_formats.h"
#include "workers/checkpoint/gguf/block_numbers.h"
#include "workers/checkpoint/quantized/decode.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/ops/gemm/weight.h"

namespace switchyard::checkpoint {
namespace {

absl::Status ReadPlainly(const WeightsFile& file, int64_t begin, absl::Span<uint8_t> to) {
  return file.Read(begin, static_cast<int64_t>(to.size()), to.data());
}

// Whether a weight of the matrix's own format, which holds its numbers as they are, has the values that are decoded.
void ExpectSameNumbers(const MatrixReader& matrix, const std::vector<float>& decoded) {
  ops::Weight weight({.n = matrix.rows(), .k = matrix.columns(), .dtype = DType::kF32, .format = matrix.own_format()});
  MatrixScratch scratch;
  for (int64_t row = 0; row < matrix.rows(); row += 3 * matrix.row_step()) {
    const int64_t count = std::min(3 * matrix.row_step(), matrix.rows() - row);
    std::vector<uint8_t> numbers(static_cast<size_t>(count * matrix.columns()));
    std::vector<uint16_t> scales(numbers.size() / ops::kQuantGroup), least(scales.size());
    const ops::StoredNumbers to = {numbers.data(), scales.data(), least.data()};
    ASSERT_TRUE(matrix.ReadNumbers(row, count, to, ReadPlainly, &scratch).ok());
    weight.PackNumbers(row, count, to);
  }
  const Tensor held(DType::kF32, {matrix.rows(), matrix.columns()});
  ASSERT_TRUE(weight.UnpackRows(0, held).ok());
  EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), held.data<float>()));
}

// A matrix [6, 128] of integers: its codes' tensor, scales of a dtype and shape, and what else there is.
struct Integers {
  int bits;
  bool packed;
  int64_t group;  // 0: a row
  std::string scale_dtype;
  bool zeros = false;
  ops::WeightFormat own = ops::WeightFormat::kPlain;
};

absl::Status CheckIntegers(const Integers& each) {
  constexpr int64_t kRows = 6, kColumns = 128;
  std::string codes;
  for (int64_t i = 0; i < kRows * kColumns * each.bits / 8; ++i) codes.push_back(static_cast<char>(i * 37 + i / 11));
  const int64_t groups = each.group == 0 ? 1 : kColumns / each.group;
  std::vector<float> scales;
  for (int64_t i = 0; i < kRows * groups; ++i) scales.push_back(0.25F + 0.125F * static_cast<float>(i % 9));
  std::map<std::string, WrittenTensor> parts = {
      {"x.weight_scale", FloatTensor(each.scale_dtype, {kRows, groups}, scales)}};
  if (each.packed) {
    std::string shape(16, '\0');
    shape[0] = static_cast<char>(kRows);
    shape[8] = static_cast<char>(kColumns);
    parts["x.weight_packed"] = {"I32", {kRows, kColumns * each.bits / 32}, codes};
    parts["x.weight_shape"] = {"I64", {2}, shape};
  } else {
    parts["x.weight"] = {"I8", {kRows, kColumns}, codes};
  }
  if (each.zeros) parts["x.weight_zero_point"] = {"I8", {kRows, groups}, std::string(kRows * groups, '\1')};
  nlohmann::json weights = {{"num_bits", each.bits}, {"type", "int"}, {"symmetric", !each.zeros}};
  weights["strategy"] = each.group == 0 ? "channel" : "group";
  if (each.group != 0) weights["group_size"] = each.group;
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(parts));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir.path()));
  ASSIGN_OR_RETURN(
      const QuantizationConfig config,
      ReadQuantizationConfig("quantization_config",
                             {{"quant_method", "compressed-tensors"},
                              {"format", each.packed ? "pack-quantized" : "int-quantized"},
                              {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix,
                   OpenMatrix(checkpoint, &config, "x.weight", {kRows, kColumns}));
  EXPECT_EQ(matrix->own_format(), each.own);
  if (each.own == ops::WeightFormat::kPlain) return absl::OkStatus();
  MatrixScratch scratch;
  std::vector<float> decoded(kRows * kColumns);
  RETURN_IF_ERROR(matrix->Read(0, kRows, decoded.data(), ReadPlainly, &scratch));
  ExpectSameNumbers(*matrix, decoded);
  return absl::OkStatus();
}

TEST(HeldNumbersTest, SymmetricIntegersAreHeldAsTheyAre) {
  using ops::WeightFormat;
  const Integers cases[] = {{4, true, 32, "BF16", false, WeightFormat::kInt4},
                            {4, true, 128, "BF16", false, WeightFormat::kInt4},
                            {4, true, 64, "F16", false, WeightFormat::kQ4_0},
                            {4, true, 0, "F16", false, WeightFormat::kQ4_0},
                            {8, true, 64, "BF16", false, WeightFormat::kInt8},
                            {8, false, 0, "BF16", false, WeightFormat::kInt8},
                            {8, false, 32, "F16", false, WeightFormat::kQ8_0},
                            // Held by no format: decoded.
                            {4, true, 16, "BF16"},
                            {4, true, 32, "F32"},
                            {8, false, 32, "BF16", true}};
  for (const Integers& each : cases) {
    SCOPED_TRACE(absl::StrCat(each.bits, " bits, group ", each.group, ", ", each.scale_dtype));
    const absl::Status status = CheckIntegers(each);
    EXPECT_TRUE(status.ok()) << status;
  }
}

// AWQ and GPTQ [64, 128] in groups of 64 with zero points: the least value of a group is rounded to fp16.
absl::Status CheckColumns(bool awq, bool ordered, std::vector<int32_t> order, float least_scale = 0.01F) {
  constexpr int64_t kRows = 64, kColumns = 128, kGroups = 2;
  std::string codes, zeros, index;
  for (int64_t i = 0; i < kRows * kColumns / 2; ++i) codes.push_back(static_cast<char>(i * 41 + i / 7));
  for (int64_t i = 0; i < kRows * kGroups / 2; ++i) zeros.push_back(static_cast<char>(i * 29));
  for (const int32_t group : order) index.append(reinterpret_cast<const char*>(&group), sizeof(group));
  std::vector<float> scales;
  for (int64_t i = 0; i < kRows * kGroups; ++i) scales.push_back(least_scale + 0.003F * static_cast<float>(i % 13));
  std::map<std::string, WrittenTensor> parts = {{"x.scales", FloatTensor("F16", {kGroups, kRows}, scales)},
                                                {"x.qzeros", {"I32", {kGroups, kRows / 8}, zeros}}};
  parts["x.qweight"] = {"I32", {awq ? kColumns : kColumns / 8, awq ? kRows / 8 : kRows}, codes};
  if (!order.empty()) parts["x.g_idx"] = {"I32", {kColumns}, index};
  nlohmann::json described = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"version", "gemm"}, {"zero_point", true}};
  if (!awq)
    described = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"desc_act", ordered}, {"sym", false}};
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(parts));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir.path()));
  ASSIGN_OR_RETURN(const QuantizationConfig config, ReadQuantizationConfig("quantization_config", described));
  ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix,
                   OpenMatrix(checkpoint, &config, "x.weight", {kRows, kColumns}));
  EXPECT_EQ(matrix->own_format(), ordered ? ops::WeightFormat::kPlain : ops::WeightFormat::kQ4_1);
  EXPECT_EQ(matrix->near_format(), ops::WeightFormat::kQ8_0);
  if (ordered) return absl::OkStatus();
  MatrixScratch scratch;
  std::vector<float> decoded(kRows * kColumns);
  RETURN_IF_ERROR(matrix->Read(0, kRows, decoded.data(), ReadPlainly, &scratch));
  std::vector<uint8_t> numbers(kRows * kColumns);
  std::vector<uint16_t> bits(numbers.size() / ops::kQuantGroup), least(bits.size());
  const ops::StoredNumbers to = {numbers.data(), bits.data(), least.data()};
  RETURN_IF_ERROR(matrix->ReadNumbers(0, kRows, to, ReadPlainly, &scratch));
  ops::Weight weight({.n = kRows, .k = kColumns, .dtype = DType::kF32, .format = matrix->own_format()});
  weight.PackNumbers(0, kRows, to);
  const Tensor held(DType::kF32, {kRows, kColumns});
  RETURN_IF_ERROR(weight.UnpackRows(0, held));
  for (size_t i = 0; i < decoded.size(); ++i) {
    EXPECT_NEAR(held.data<float>()[i], decoded[i], 16 * 0.05 / 2048) << i;  // zero points to 16, scales to 0.05
  }
  return absl::OkStatus();
}

TEST(HeldNumbersTest, FourBitsWithZeroPointsAreHeldWithALeastValue) {
  std::vector<int32_t> order(128);
  for (size_t k = 0; k < order.size(); ++k) order[k] = static_cast<int32_t>(k / 64);
  for (const bool awq : {true, false}) {
    const absl::Status status = CheckColumns(awq, false, awq ? std::vector<int32_t>() : order);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(CheckColumns(/*awq=*/false, /*ordered=*/true, order).ok());
  EXPECT_THAT(std::string(CheckColumns(/*awq=*/true, /*ordered=*/false, {}, 8192).message()),
              testing::HasSubstr("beyond fp16; --quantization=none decodes the weights"));
  std::swap(order[0], order[127]);
  EXPECT_THAT(std::string(CheckColumns(/*awq=*/false, /*ordered=*/false, order).message()),
              testing::HasSubstr("expected 0 at column 0, as desc_act is false, found 1; --quantization=none decodes"));
}

// A symmetric checkpoint [64, 128] of GPTQ (zero points are stored less one) or AWQ (without any).
absl::Status CheckSymmetricColumns(bool awq, int bits, ops::WeightFormat own, uint8_t zeros_byte) {
  constexpr int64_t kRows = 64, kColumns = 128, kGroups = 2;
  const int64_t factor = 32 / bits;
  std::string codes;
  for (int64_t i = 0; i < kRows * kColumns * bits / 8; ++i) codes.push_back(static_cast<char>(i * 41 + i / 7));
  std::vector<float> scales;
  for (int64_t i = 0; i < kRows * kGroups; ++i) scales.push_back(0.01F + 0.003F * static_cast<float>(i % 13));
  std::map<std::string, WrittenTensor> parts = {{"x.scales", FloatTensor("F16", {kGroups, kRows}, scales)}};
  parts["x.qweight"] = {"I32", {awq ? kColumns : kColumns / factor, awq ? kRows / factor : kRows}, codes};
  if (!awq)
    parts["x.qzeros"] = {
        "I32", {kGroups, kRows / factor}, std::string(kGroups * kRows * bits / 8, static_cast<char>(zeros_byte))};
  nlohmann::json described = {
      {"quant_method", "awq"}, {"bits", bits}, {"group_size", 64}, {"version", "gemm"}, {"zero_point", false}};
  if (!awq)
    described = {{"quant_method", "gptq"}, {"bits", bits}, {"group_size", 64}, {"desc_act", false}, {"sym", true}};
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(parts));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir.path()));
  ASSIGN_OR_RETURN(const QuantizationConfig config, ReadQuantizationConfig("quantization_config", described));
  ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix,
                   OpenMatrix(checkpoint, &config, "x.weight", {kRows, kColumns}));
  EXPECT_EQ(matrix->own_format(), own);
  MatrixScratch scratch;
  std::vector<float> decoded(kRows * kColumns);
  RETURN_IF_ERROR(matrix->Read(0, kRows, decoded.data(), ReadPlainly, &scratch));
  std::vector<uint8_t> numbers(kRows * kColumns);
  std::vector<uint16_t> first(numbers.size() / ops::kQuantGroup);
  RETURN_IF_ERROR(matrix->ReadNumbers(0, kRows, {numbers.data(), first.data(), nullptr}, ReadPlainly, &scratch));
  ExpectSameNumbers(*matrix, decoded);
  return absl::OkStatus();
}

TEST(HeldNumbersTest, SymmetricColumnsAreHeldAsTheyAre) {
  for (const auto& status : {CheckSymmetricColumns(false, 4, ops::WeightFormat::kQ4_0, 0x77),
                             CheckSymmetricColumns(false, 8, ops::WeightFormat::kQ8_0, 0x7f),
                             CheckSymmetricColumns(true, 4, ops::WeightFormat::kQ4_0, 0)}) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_THAT(std::string(CheckSymmetricColumns(false, 4, ops::WeightFormat::kQ4_0, 0x78).message()),
              testing::HasSubstr("expected zero points of 8 of a symmetric checkpoint, found 9; --quantization=none"));
}

// Fp8 has no format of its own.  What q8_0 adds to it is small beside its own error, of numbers as weights are.
TEST(HeldNumbersTest, Fp8IsNearQ80) {
  constexpr int64_t kRows = 16, kColumns = 256;
  uint32_t random = 1;
  std::string codes;
  double own = 0;  // sum of squares, as those of fp8's roundings
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    float value = 0;  // nearly normal, standard deviation 100
    for (int j = 0; j < 12; ++j) {
      random = random * 1664525u + 1013904223u;
      value += 100 * (static_cast<float>(random >> 8) / 16777216.0F - 0.5F);
    }
    uint8_t best = 0;
    for (int code = 1; code < 256; ++code) {
      if (code == 0x7f || code == 0xff) continue;  // NaN
      const auto error = [&](uint8_t of) { return std::fabs(DecodeE4m3(of) - value); };
      if (error(static_cast<uint8_t>(code)) < error(best)) best = static_cast<uint8_t>(code);
    }
    codes.push_back(static_cast<char>(best));
    own += std::pow(static_cast<double>(DecodeE4m3(best) - value), 2);
  }
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes({{"x.weight", {"F8_E4M3", {kRows, kColumns}, codes}},
                                                   {"x.weight_scale", FloatTensor("F32", {1}, {1})}}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ReadQuantizationConfig("quantization_config", {{"quant_method", "fp8"}});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto matrix = OpenMatrix(*checkpoint, &*config, "x.weight", {kRows, kColumns});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->own_format(), ops::WeightFormat::kPlain);
  ASSERT_EQ((*matrix)->near_format(), ops::WeightFormat::kQ8_0);
  const Tensor decoded(DType::kF32, {kRows, kColumns}), held(DType::kF32, {kRows, kColumns});
  MatrixScratch scratch;
  ASSERT_TRUE((*matrix)->Read(0, kRows, decoded.data<float>(), ReadPlainly, &scratch).ok());
  ops::Weight weight({.n = kRows, .k = kColumns, .dtype = DType::kF32, .format = ops::WeightFormat::kQ8_0});
  ASSERT_TRUE(weight.PackRows(0, decoded).ok());
  ASSERT_TRUE(weight.UnpackRows(0, held).ok());
  double added = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    added += std::pow(static_cast<double>(held.data<float>()[i] - decoded.data<float>()[i]), 2);
  }
  EXPECT_GT(own, 0);
  EXPECT_LE(std::sqrt(added), 0.3 * std::sqrt(own));
}

// Every code, with scales at both ends.
TEST(HeldNumbersTest, Mxfp4IsHeldAsItIs) {
  constexpr int64_t kRows = 4, kColumns = 64;
  std::string codes, scales;
  for (int64_t i = 0; i < kRows * kColumns / 2; ++i) codes.push_back(static_cast<char>(i * 17 + i / 16));
  for (const int scale : {0, 1, 100, 127, 128, 200, 252, 120}) scales.push_back(static_cast<char>(scale));
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes({{"x_blocks", {"U8", {1, kRows, kColumns / 32, 16}, codes}},
                                                   {"x_scales", {"U8", {1, kRows, kColumns / 32}, scales}}}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ReadQuantizationConfig("quantization_config", {{"quant_method", "mxfp4"}});
  ASSERT_TRUE(config.ok()) << config.status();
  const auto matrix = OpenMatrix(*checkpoint, &*config, "x", {1, kRows, kColumns});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ((*matrix)->own_format(), ops::WeightFormat::kMxfp4);
  MatrixScratch scratch;
  std::vector<float> decoded(kRows * kColumns);
  ASSERT_TRUE((*matrix)->Read(0, kRows, decoded.data(), ReadPlainly, &scratch).ok());
  ExpectSameNumbers(**matrix, decoded);
}

std::string ReadBlocks(const std::string& type) {
  std::ifstream file(absl::StrCat("tests/golden/gguf/blocks/", type, ".blocks"), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

float HalfOf(uint16_t bits) {
  Fp16 half;
  half.bits = bits;
  return static_cast<float>(half);
}

double BrainOf(uint16_t bits) {
  Bf16 brain;
  brain.bits = bits;
  return static_cast<double>(static_cast<float>(brain));
}

// GGUF's blocks, whose decoded values gguf_block_formats_test compares with the gguf package's.
TEST(HeldNumbersTest, BlocksHaveTheDecodedValues) {
  for (const auto& [type, name, rounding] : {std::tuple(GgufType::kQ8_0, "Q8_0", 0.0),
                                             {GgufType::kQ4_0, "Q4_0", 0.0},
                                             {GgufType::kQ4_1, "Q4_1", 0.0},
                                             {GgufType::kQ4_K, "Q4_K", 0x1p-11},
                                             {GgufType::kQ6_K, "Q6_K", 0x1p-11},
                                             {GgufType::kMXFP4, "MXFP4", 0.0}}) {
    SCOPED_TRACE(name);
    const std::string bytes = ReadBlocks(name);
    const GgufBlockFormat& format = *FindGgufBlockFormat(name);
    const auto num_blocks = static_cast<int64_t>(bytes.size()) / format.bytes;
    ASSERT_GT(num_blocks, 1);
    const auto* const blocks = reinterpret_cast<const uint8_t*>(bytes.data());
    std::vector<float> decoded(static_cast<size_t>(num_blocks * format.elements));
    DecodeBlocks(type, blocks, static_cast<int64_t>(decoded.size()), decoded.data());
    std::vector<uint8_t> numbers(decoded.size());
    const BlockNumbers found = NumbersOfType(name);
    const auto group = static_cast<size_t>(ops::ScaleGroup(found.format));
    std::vector<uint16_t> scales(numbers.size() / group), least(scales.size());
    size_t compared = 0;
    found.read(blocks, num_blocks, {numbers.data(), scales.data(), least.data()});
    for (size_t i = 0; i < decoded.size(); ++i) {
      double scaled = static_cast<double>(HalfOf(scales[i / group])) * (numbers[i] - ops::WeightZero(found.format));
      if (type == GgufType::kMXFP4) scaled = BrainOf(scales[i / group]) * ops::kTwiceFp4[numbers[i]];
      const double value = ops::HasLeast(found.format) ? HalfOf(least[i / group]) : 0;
      if (!std::isfinite(scaled + value) || !std::isfinite(decoded[i])) continue;  // which loading refuses
      ++compared;
      // Sums of two halves are rounded to fp32 when they are decoded.
      const double limit = rounding * (std::fabs(scaled) + std::fabs(value)) + 0x1p-23 * std::fabs(decoded[i]);
      ASSERT_NEAR(scaled + value, decoded[i], limit + 0x1p-24) << i;
    }
    EXPECT_GE(compared, decoded.size() / 2);
  }
  EXPECT_EQ(NumbersOfType("Q5_K").format, ops::WeightFormat::kPlain);
}

}  // namespace
}  // namespace switchyard::checkpoint
