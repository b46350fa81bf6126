// Matrices of every published format against the format's own reference (tests/golden/quantized), to the bit, and
// checkpoints that are wrong.
#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/quantized/matrix_reader.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kMatrices[] = "tests/golden/quantized/matrices";

absl::Status ReadPlainly(const WeightsFile& file, int64_t begin, absl::Span<uint8_t> to) {
  return file.Read(begin, static_cast<int64_t>(to.size()), to.data());
}

// All rows, in reads of so many.
absl::StatusOr<std::vector<float>> ReadAll(const MatrixReader& matrix, int64_t rows_at_once) {
  std::vector<float> values(static_cast<size_t>(matrix.rows() * matrix.columns()));
  MatrixScratch scratch;
  for (int64_t row = 0; row < matrix.rows(); row += rows_at_once) {
    RETURN_IF_ERROR(matrix.Read(row, std::min(rows_at_once, matrix.rows() - row), &values[row * matrix.columns()],
                                ReadPlainly, &scratch));
  }
  return values;
}

nlohmann::json Cases() {
  std::ifstream file(std::string(kMatrices) + "/cases.json");
  return nlohmann::json::parse(file);
}

// The bytes of values that are rounded to a tensor's dtype.
std::string Rounded(const std::string& dtype, const std::vector<float>& values) {
  return FloatTensor(dtype, {static_cast<int64_t>(values.size())}, values).bytes;
}

TEST(QuantizedMatrixTest, EveryFormatIsBitEqualToItsReference) {
  const auto checkpoint = Checkpoint::Open(kMatrices);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const nlohmann::json cases = Cases();
  ASSERT_GE(cases.size(), 23u);
  for (const auto& [name, each] : cases.items()) {
    SCOPED_TRACE(name);
    const auto config = ReadQuantizationConfig("quantization_config", each["config"]);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto shape = each["shape"].get<std::vector<int64_t>>();
    const auto matrix = OpenMatrix(*checkpoint, &*config, each["tensor"].get<std::string>(), shape);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    ASSERT_NE(*matrix, nullptr);
    EXPECT_EQ((*matrix)->columns(), shape.back());
    const TensorLocation expected = checkpoint->Find(name + ".expected");
    ASSERT_NE(expected.file, nullptr);
    std::string bytes(static_cast<size_t>(expected.entry->bytes), '\0');
    ASSERT_TRUE(expected.file->Read(expected.entry->begin, expected.entry->bytes, bytes.data()).ok());
    for (const int64_t steps : {int64_t{1}, int64_t{2}, (*matrix)->rows()}) {
      const auto values = ReadAll(**matrix, steps * (*matrix)->row_step());
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_TRUE(Rounded(expected.entry->dtype, *values) == bytes) << "in reads of " << steps;
    }
  }
}

TEST(QuantizedMatrixTest, AReaderNamesItsTensorsAndTheirBytes) {
  const auto checkpoint = Checkpoint::Open(kMatrices);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto config = ReadQuantizationConfig("q", Cases()["gptq4_ordered"]["config"]);
  const auto matrix = OpenMatrix(*checkpoint, &*config, "gptq4_ordered.weight", {32, 64});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT((*matrix)->tensors(), testing::ElementsAre("gptq4_ordered.qweight", "gptq4_ordered.scales",
                                                         "gptq4_ordered.qzeros", "gptq4_ordered.g_idx"));
  EXPECT_EQ((*matrix)->row_step(), 8);
  EXPECT_EQ((*matrix)->ReadSize(32), 32 * 64 / 2 + 4 * 32 * 2 + 4 * 32 / 2 + 64 * 4);
}

// What a bad checkpoint is made of: a good one of 32 x 64 values of each format, as zeros.
using Parts = std::map<std::string, WrittenTensor>;

WrittenTensor Zeros(const std::string& dtype, std::vector<int64_t> shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t dim : shape) bytes *= dim;
  return {dtype, std::move(shape), std::string(static_cast<size_t>(bytes), '\0')};
}

Parts Fp8Parts() {
  return {{"x.weight", Zeros("F8_E4M3", {32, 64}, 1)},
          {"x.weight_scale_inv", FloatTensor("F32", {2, 2}, {1, 2, 3, 4})}};
}

Parts PackedParts() {
  Parts parts = {{"x.weight_packed", Zeros("I32", {32, 8}, 4)},
                 {"x.weight_scale", FloatTensor("BF16", {32, 4}, std::vector<float>(128, 1))},
                 {"x.weight_zero_point", Zeros("I32", {4, 4}, 4)},
                 {"x.weight_g_idx", Zeros("I32", {64}, 4)},
                 {"x.weight_shape", Zeros("I64", {2}, 8)}};
  const int64_t shape[2] = {32, 64};
  std::memcpy(parts["x.weight_shape"].bytes.data(), shape, sizeof(shape));
  return parts;
}

Parts GptqParts() {
  return {{"x.qweight", Zeros("I32", {8, 32}, 4)},
          {"x.qzeros", Zeros("I32", {4, 4}, 4)},
          {"x.scales", FloatTensor("F16", {4, 32}, std::vector<float>(128, 1))},
          {"x.g_idx", Zeros("I32", {64}, 4)}};
}

Parts AwqParts() {
  Parts parts = GptqParts();
  parts.erase("x.g_idx");
  parts["x.qweight"] = Zeros("I32", {64, 4}, 4);
  return parts;
}

Parts Mxfp4Parts() { return {{"x_blocks", Zeros("U8", {2, 16, 2, 16}, 1)}, {"x_scales", Zeros("U8", {2, 16, 2}, 1)}}; }

constexpr char kFp8Config[] = R"({"quant_method": "fp8", "weight_block_size": [16, 32],
                                  "modules_to_not_convert": ["y"]})";
constexpr char kPackedConfig[] = R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
    {"a": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16, "symmetric": false,
                                              "actorder": "group"}}}})";
constexpr char kGptqConfig[] = R"({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": true})";
constexpr char kAwqConfig[] = R"({"quant_method": "awq", "bits": 4, "group_size": 16})";
constexpr char kMxfp4Config[] = R"({"quant_method": "mxfp4"})";

struct Attempt {
  std::string config;
  Parts parts;
  std::string name = "x.weight";
  std::vector<int64_t> shape = {32, 64};
};

absl::Status Try(const Attempt& attempt) {
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(attempt.parts));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(dir.path()));
  ASSIGN_OR_RETURN(const QuantizationConfig config,
                   ReadQuantizationConfig("quantization_config", nlohmann::json::parse(attempt.config)));
  ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix,
                   OpenMatrix(checkpoint, &config, attempt.name, attempt.shape));
  if (matrix == nullptr) return absl::NotFoundError("stored plainly");
  return ReadAll(*matrix, 16).status();
}

Attempt Fp8() { return {kFp8Config, Fp8Parts()}; }
Attempt Packed() { return {kPackedConfig, PackedParts()}; }
Attempt Gptq() { return {kGptqConfig, GptqParts()}; }
Attempt Awq() { return {kAwqConfig, AwqParts()}; }
Attempt Mxfp4() { return {kMxfp4Config, Mxfp4Parts(), "x", {2, 16, 64}}; }

TEST(QuantizedMatrixTest, TheGoodOnesAreGood) {
  for (const Attempt& attempt : {Fp8(), Packed(), Gptq(), Awq(), Mxfp4()}) EXPECT_EQ(Try(attempt), absl::OkStatus());
}

struct BadCheckpoint {
  Attempt attempt;
  std::function<void(Attempt*)> spoil;
  std::vector<std::string> says;
};

void ExpectRefused(const std::vector<BadCheckpoint>& all) {
  for (const BadCheckpoint& bad : all) {
    Attempt attempt = bad.attempt;
    bad.spoil(&attempt);
    const absl::Status status = Try(attempt);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.says.front();
    for (const std::string& text : bad.says) EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

auto Without(const std::string& part) {
  return [part](Attempt* a) { a->parts.erase(part); };
}
auto With(const std::string& part, const WrittenTensor& tensor) {
  return [part, tensor](Attempt* a) { a->parts[part] = tensor; };
}
// The part with its 32-bit word at `index` replaced.
auto WithWord(const std::string& part, size_t index, int32_t word) {
  return [=](Attempt* a) { std::memcpy(a->parts[part].bytes.data() + 4 * index, &word, sizeof(word)); };
}

TEST(QuantizedMatrixTest, BadFp8) {
  const std::vector<float> nan = {1, std::nanf(""), 3, 4}, inf = {1, 2, 3, INFINITY};
  ExpectRefused({
      {Fp8(),
       Without("x.weight_scale_inv"),
       {"\"x.weight_scale\"", "of [2, 2] (a scale for each block of 16 x 32)", "missing"}},
      {Fp8(),
       With("x.weight_scale_inv", FloatTensor("F32", {1, 2}, {1, 2})),
       {"model.safetensors: tensor \"x.weight_scale_inv\"", "of [2, 2]", "found F32 of [1, 2]"}},
      {Fp8(),
       With("x.weight_scale_inv", Zeros("I32", {2, 2}, 4)),
       {"expected F32, BF16, F16, F8_E8M0", "found I32 of [2, 2]"}},
      {Fp8(),
       With("x.weight_scale_inv", FloatTensor("F32", {2, 2}, nan)),
       {"tensor \"x.weight_scale_inv\": expected finite scales, found NaN at element 1"}},
      {Fp8(), With("x.weight_scale_inv", FloatTensor("F32", {2, 2}, inf)), {"found Inf at element 3"}},
      {Fp8(),
       With("x.weight", Zeros("F8_E5M2", {32, 64}, 1)),
       {"tensor \"x.weight\": expected F8_E4M3", "found F8_E5M2"}},
      {Fp8(), With("x.weight", Zeros("I8", {32, 64}, 1)), {"expected F8_E4M3", "found I8"}},
      {Fp8(), With("x.weight", Zeros("F8_E4M3", {64, 32}, 1)), {"of [32, 64]", "found F8_E4M3 of [64, 32]"}},
      {Fp8(),
       [](Attempt* a) {
         a->shape = {2, 2, 2, 256};
       },
       {"\"x.weight\": fp8, 8 bits", "matrices and stacks of them"}},
      {Fp8(),
       [](Attempt* a) { a->config = R"({"quant_method": "fp8"})"; },
       {"of [] or [1] or [32, 1] or [32]", "found F32 of [2, 2]"}},
      {Fp8(),
       [](Attempt* a) { a->config = R"({"quant_method": "fp8", "modules_to_not_convert": ["x"]})"; },
       {"\"x.weight\"", "quantization_config excludes x"}},
      {Fp8(),
       [](Attempt* a) { a->parts = GptqParts(); },
       {"quantization_config says fp8: fp8, 8 bits, blocks of 16 x 32", "found \"x.qweight\", I32"}},
  });
}

TEST(QuantizedMatrixTest, BadCompressedTensors) {
  const WrittenTensor scales = FloatTensor("F32", {32, 2}, std::vector<float>(64, 1));
  ExpectRefused({
      {Packed(),
       Without("x.weight_scale"),
       {"tensor \"x.weight_scale\"", "of [32, 4] (a scale for each 16 columns of a row)", "missing"}},
      {Packed(),
       Without("x.weight_zero_point"),
       {"tensor \"x.weight_zero_point\"", "zero points of 4 bits, packed along the rows", "missing"}},
      {Packed(), Without("x.weight_shape"), {"tensor \"x.weight_shape\"", "missing"}},
      {Packed(), Without("x.weight_g_idx"), {"tensor \"x.weight_g_idx\"", "the group of each column", "missing"}},
      {Packed(), With("x.weight_scale", scales), {"found F32 of [32, 2]"}},
      {Packed(),
       With("x.weight_packed", Zeros("I32", {32, 16}, 4)),
       {"of [32, 8] (codes of 4 bits of 32 x 64 values)", "found I32 of [32, 16]"}},
      {Packed(),
       With("x.weight_zero_point", Zeros("I8", {32, 4}, 1)),
       {"expected I32 of [4, 4]", "found I8 of [32, 4]"}},
      {Packed(),
       WithWord("x.weight_shape", 0, 33),
       {"tensor \"x.weight_shape\": expected the values 32, 64, found 33, 64"}},
      {Packed(),
       WithWord("x.weight_g_idx", 5, 4),
       {"tensor \"x.weight_g_idx\": expected groups from 0 to 3, found 4 for column 5"}},
      {Packed(), WithWord("x.weight_g_idx", 0, -1), {"found -1 for column 0"}},
      {Packed(),
       [](Attempt* a) {
         a->shape = {32, 60};
       },
       {"groups of 16 columns do not divide its 60 columns"}},
      {Packed(),
       [](Attempt* a) {
         a->shape = {2, 16, 64};
       },
       {"understood for matrices"}},
  });
}

TEST(QuantizedMatrixTest, BadGptqAwqAndMxfp4) {
  const WrittenTensor nan = FloatTensor("F16", {4, 32}, std::vector<float>(128, std::nanf("")));
  ExpectRefused({
      {Gptq(), Without("x.qzeros"), {"tensor \"x.qzeros\": expected I32 of [4, 4]", "missing"}},
      {Gptq(), Without("x.scales"), {"tensor \"x.scales\"", "of [4, 32] (groups of 16)", "missing"}},
      {Gptq(), Without("x.g_idx"), {"tensor \"x.g_idx\"", "missing"}},
      {Gptq(), With("x.scales", nan), {"tensor \"x.scales\": expected finite scales, found NaN at element 0"}},
      {Gptq(), With("x.qweight", Zeros("I32", {16, 32}, 4)), {"expected I32 of [8, 32]", "found I32 of [16, 32]"}},
      {Gptq(), WithWord("x.g_idx", 63, 1000), {"expected groups from 0 to 3, found 1000 for column 63"}},
      {Gptq(),
       [](Attempt* a) {
         a->shape = {30, 64};
       },
       {"words of 8 codes do not divide its 30 rows and 64 columns"}},
      {Gptq(),
       [](Attempt* a) { a->config = kAwqConfig; },
       {"expected I32 of [64, 4] (of 32 x 64 values, transposed)", "found I32 of [8, 32]"}},
      {Awq(), Without("x.qzeros"), {"tensor \"x.qzeros\"", "missing"}},
      {Awq(), With("x.scales", FloatTensor("F16", {2, 32}, std::vector<float>(64, 1))), {"found F16 of [2, 32]"}},
      {Awq(),
       [](Attempt* a) {
         a->shape = {32, 56};
       },
       {"groups of 16 columns do not divide its 56 columns"}},
      {Mxfp4(), Without("x_scales"), {"tensor \"x_scales\"", "of [2, 16, 2]", "missing"}},
      {Mxfp4(),
       With("x_blocks", Zeros("U8", {2, 16, 2, 8}, 1)),
       {"of [2, 16, 2, 16] (two codes in a byte)", "found U8 of [2, 16, 2, 8]"}},
      {Mxfp4(),
       [](Attempt* a) { a->parts["x_scales"].bytes[7] = '\xff'; },
       {"tensor \"x_scales\"", "found NaN at element 7"}},
      {Mxfp4(),
       [](Attempt* a) {
         a->shape = {2, 16, 60};
       },
       {"groups of 32 columns do not divide its 60 columns"}},
  });
}

TEST(QuantizedMatrixTest, WhatIsStoredPlainlyOrNotAtAllHasNoReader) {
  Attempt plain = Fp8();
  plain.parts["x.weight"] = FloatTensor("BF16", {1, 2}, {1, 2});
  EXPECT_EQ(Try(plain).code(), absl::StatusCode::kNotFound);
  plain.name = "z.weight";
  EXPECT_EQ(Try(plain).code(), absl::StatusCode::kNotFound);
}

// Two schemes of one checkpoint: a matrix has the one that its tensors fit.
TEST(QuantizedMatrixTest, AMatrixHasTheSchemeThatFits) {
  Attempt mixed = Packed();
  mixed.config = R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
      "a": {"format": "float-quantized", "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
      "b": {"format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 16}},
      "c": {"format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 16, "symmetric": false}}}})";
  // A zero point of 0 beside codes of 0: the values are 0.  The symmetric scheme would read -8.
  const model::TempDir dir;
  dir.Write("model.safetensors", SafetensorsBytes(mixed.parts));
  const auto checkpoint = Checkpoint::Open(dir.path());
  const auto config = ReadQuantizationConfig("q", nlohmann::json::parse(mixed.config));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto matrix = OpenMatrix(*checkpoint, &*config, "x.weight", {32, 64});
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_THAT(*ReadAll(**matrix, 32), testing::Each(0.0f));
}

// Layers of 4 and of 8 bits: each is read as it is stored, in whatever order the groups and their targets come.
TEST(QuantizedMatrixTest, LayersOfOtherBitsAreReadAsTheyAreStored) {
  Parts parts;
  const auto add = [&](const std::string& name, int bits) {
    parts[name + ".weight_packed"] = Zeros("I32", {32, 2 * bits}, 4);
    parts[name + ".weight_packed"].bytes[0] = '\x12';
    parts[name + ".weight_scale"] = FloatTensor("BF16", {32, 4}, std::vector<float>(128, 1));
    parts[name + ".weight_shape"] = PackedParts()["x.weight_shape"];
  };
  add("layers.0.mlp", 4);
  add("layers.1.mlp", 8);
  const char* const four = R"("re:.*layers\\.0\\..*")";
  const char* const eight = R"("re:.*layers\\.1\\..*")";
  const auto group = [](int bits, const std::string& target) {
    return "{\"targets\": [" + target + "], \"weights\": {\"group_size\": 16, \"num_bits\": " + std::to_string(bits) +
           "}}";
  };
  for (const bool swapped : {false, true}) {
    const std::string config = std::string(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",)") +
                               R"("config_groups": {"a": )" + (swapped ? group(8, eight) : group(4, four)) +
                               ", \"b\": " + (swapped ? group(4, four) : group(8, eight)) + "}}";
    const model::TempDir dir;
    dir.Write("model.safetensors", SafetensorsBytes(parts));
    const auto checkpoint = Checkpoint::Open(dir.path());
    const auto read = ReadQuantizationConfig("q", nlohmann::json::parse(config));
    ASSERT_TRUE(checkpoint.ok() && read.ok()) << read.status();
    const auto first = OpenMatrix(*checkpoint, &*read, "layers.0.mlp.weight", {32, 64});
    const auto second = OpenMatrix(*checkpoint, &*read, "layers.1.mlp.weight", {32, 64});
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    const std::vector<float> values = *ReadAll(**first, 32), wide = *ReadAll(**second, 32);
    EXPECT_THAT(std::vector<float>(values.begin(), values.begin() + 3), testing::ElementsAre(2 - 8, 1 - 8, -8));
    EXPECT_THAT(std::vector<float>(wide.begin(), wide.begin() + 3), testing::ElementsAre(0x12 - 128, -128, -128));
  }
}

TEST(QuantizedMatrixTest, BlocksOfTwoSizesThatFitAreRefused) {
  Attempt attempt = {
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
      "a": {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [20, 40]}},
      "b": {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}}}})",
      {{"x.weight", Zeros("F8_E4M3", {32, 64}, 1)}, {"x.weight_scale", FloatTensor("F32", {2, 2}, {1, 2, 3, 4})}}};
  EXPECT_THAT(std::string(Try(attempt).message()),
              AllOf(HasSubstr("model.safetensors: tensor \"x.weight\": fits two of quantization_config's groups"),
                    HasSubstr("blocks of 20 x 40"), HasSubstr("blocks of 16 x 32")));
  attempt.parts["x.weight_scale"] = FloatTensor("F32", {2, 4}, std::vector<float>(8, 1));
  EXPECT_THAT(std::string(Try(attempt).message()), HasSubstr("tensor \"x.weight_scale\""));
}

}  // namespace
}  // namespace switchyard::checkpoint
