// The header of a GGUF file: what is read of a sound one, and the errors of others.
#include "scheduler/base/gguf/gguf_header.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/checkpoint/gguf_bytes.h"

namespace switchyard::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

absl::StatusOr<GgufHeader> ReadBytes(const std::string& file) {
  return ReadGgufHeader(static_cast<int64_t>(file.size()), [&](int64_t begin, absl::Span<char> to) {
    EXPECT_LE(begin + static_cast<int64_t>(to.size()), static_cast<int64_t>(file.size()));
    std::memcpy(to.data(), file.data() + begin, to.size());
    return absl::OkStatus();
  });
}

std::string ErrorOf(const std::string& file) {
  const auto header = ReadBytes(file);
  return header.ok() ? "no error" : std::string(header.status().message());
}

// A file with a value of every type, and three tensors.
GgufParts Sound() {
  return {.keys = {GgufTextKey("general.architecture", "llama"), GgufU32Key("general.alignment", 64),
                   GgufF32Key("eps", 1e-6F), GgufKey("u8", GgufValueType::kUint8, "\x07"),
                   GgufKey("i8", GgufValueType::kInt8, "\xff"), GgufKey("u16", GgufValueType::kUint16, "\xff\xff"),
                   GgufKey("i16", GgufValueType::kInt16, "\xfe\xff"),
                   GgufKey("i32", GgufValueType::kInt32, GgufU32(0xfffffffd)),
                   GgufKey("yes", GgufValueType::kBool, "\x01"), GgufKey("u64", GgufValueType::kUint64, GgufU64(5)),
                   GgufKey("huge", GgufValueType::kUint64, GgufU64(UINT64_MAX)),
                   GgufKey("i64", GgufValueType::kInt64, GgufU64(UINT64_MAX)),
                   GgufKey("f64", GgufValueType::kFloat64, GgufU64(0x3ff8000000000000)),
                   GgufArrayKey("texts", GgufValueType::kString, 3, GgufText("a") + GgufText("") + GgufText("bc")),
                   GgufArrayKey("ints", GgufValueType::kInt32, 2, GgufU32(1) + GgufU32(0xffffffff)),
                   GgufArrayKey("bools", GgufValueType::kBool, 2, std::string("\1\0", 2)),
                   GgufArrayKey("none", GgufValueType::kString, 0, "")},
          .rows = {GgufRow("b", {2, 3, 32}, 8, 128), GgufRow("a", {5}, 0, 0), GgufRow("c", {1, 256}, 12, 384)},
          .data = std::string(384 + 144, 'd'),
          .alignment = 64};
}

TEST(GgufHeaderTest, ReadsValuesOfEveryType) {
  const auto header = ReadBytes(GgufBytes(Sound()));
  ASSERT_TRUE(header.ok()) << header.status();
  const GgufMetadata& metadata = header->metadata;
  EXPECT_EQ(metadata.entries().size(), 17u);
  EXPECT_EQ(*metadata.String("general.architecture"), "llama");
  EXPECT_EQ(*metadata.Number("eps"), 1e-6);  // not that of the float
  const std::pair<const char*, int64_t> ints[] = {{"u8", 7},   {"i8", -1}, {"u16", 65535}, {"i16", -2},
                                                  {"i32", -3}, {"u64", 5}, {"i64", -1}};
  for (const auto& [key, value] : ints) {
    EXPECT_EQ(*metadata.Int(key), value) << key;
    EXPECT_EQ(*metadata.Number(key), static_cast<double>(value)) << key;
  }
  EXPECT_EQ(*metadata.Number("f64"), 1.5);
  EXPECT_EQ(*metadata.Number("huge"), 18446744073709551616.0);
  EXPECT_EQ(*metadata.Bool("yes"), true);
  EXPECT_THAT(metadata.Find("texts")->Strings(), Optional(ElementsAre("a", "", "bc")));
  EXPECT_THAT(metadata.Find("ints")->Ints(), Optional(ElementsAre(1, -1)));
  EXPECT_THAT(metadata.Find("ints")->Numbers(), Optional(ElementsAre(1.0, -1.0)));
  EXPECT_THAT(metadata.Find("bools")->Bools(), Optional(ElementsAre(true, false)));
  EXPECT_THAT(metadata.Find("none")->Strings(), Optional(ElementsAre()));
  EXPECT_EQ(metadata.Find("ints")->Int(), std::nullopt);
  EXPECT_EQ(metadata.Find("u8")->Ints(), std::nullopt);
  EXPECT_EQ(metadata.Find("absent"), nullptr);
}

TEST(GgufHeaderTest, ReadersSayWhatTheyExpected) {
  const auto header = ReadBytes(GgufBytes(Sound()));
  ASSERT_TRUE(header.ok()) << header.status();
  const GgufMetadata& metadata = header->metadata;
  EXPECT_EQ(metadata.Int("absent").status().message(), "key \"absent\": is missing, expected an integer");
  EXPECT_EQ(*metadata.Int("absent", 3), 3);
  EXPECT_EQ(metadata.Int("texts", 3).status().message(),
            "key \"texts\": expected an integer, found array of 3 strings");
  EXPECT_EQ(metadata.Int("eps").status().message(), "key \"eps\": expected an integer, found float32");
  EXPECT_EQ(metadata.Int("huge").status().message(), "key \"huge\": expected an integer, found uint64");
  EXPECT_EQ(metadata.Number("yes").status().message(), "key \"yes\": expected a number, found bool");
  EXPECT_EQ(metadata.Bool("u8").status().message(), "key \"u8\": expected a bool, found uint8");
  EXPECT_EQ(metadata.String("i8").status().message(), "key \"i8\": expected a string, found int8");
}

TEST(GgufHeaderTest, ReadsTheTable) {
  for (const uint32_t version : {2, 3}) {
    GgufParts parts = Sound();
    parts.version = version;
    const std::string file = GgufBytes(parts);
    const auto header = ReadBytes(file);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->version, version);
    EXPECT_EQ(header->alignment, 64);
    EXPECT_EQ(header->data_begin, static_cast<int64_t>(file.size() - parts.data.size()));
    ASSERT_EQ(header->tensors.size(), 3u);
    EXPECT_EQ(header->tensors[0].name, "a");
    EXPECT_EQ(header->tensors[0].bytes, 20);
    EXPECT_EQ(header->tensors[1].name, "b");
    EXPECT_STREQ(header->tensors[1].format->name, "Q8_0");
    EXPECT_THAT(header->tensors[1].shape, ElementsAre(2, 3, 32));
    EXPECT_EQ(header->tensors[1].begin, header->data_begin + 128);
    EXPECT_EQ(header->tensors[1].bytes, 6 * 34);
    EXPECT_EQ(header->tensors[1].row_bytes(), 34);
    EXPECT_EQ(header->tensors[2].bytes, 144);
  }
}

// Cut anywhere, it is refused, and what is said names where the file ends.
TEST(GgufHeaderTest, RefusesAFileCutAtAnyPlace) {
  const std::string file = GgufBytes(Sound());
  ASSERT_TRUE(ReadBytes(file).ok());
  for (size_t size = 0; size < file.size(); ++size) {
    const std::string error = ErrorOf(file.substr(0, size));
    EXPECT_THAT(error, ::testing::AnyOf(HasSubstr(absl::StrCat("the file ends at byte ", size)),
                                        HasSubstr(absl::StrCat("which ends at byte ", size)),
                                        HasSubstr(absl::StrCat("the file, which has ", size, " bytes"))))
        << size;
  }
}

struct BadFile {
  std::string bytes;
  std::string error;
};

std::string Counts(uint64_t tensors, uint64_t keys) { return "GGUF" + GgufU32(3) + GgufU64(tensors) + GgufU64(keys); }

std::string WithKeys(std::vector<std::string> keys) { return GgufBytes({.keys = std::move(keys)}); }

std::string WithRows(std::vector<std::string> rows, size_t data_bytes = 4096) {
  return GgufBytes({.rows = std::move(rows), .data = std::string(data_bytes, '\0')});
}

TEST(GgufHeaderTest, RefusesWrongFilesAndCounts) {
  const BadFile files[] = {
      {"", "the magic: expected 4 bytes at byte 0, the file ends at byte 0"},
      {"GG", "the magic: expected 4 bytes at byte 0, the file ends at byte 2"},
      {"GGML" + GgufU32(3), "expected the magic \"GGUF\", found \"GGML\"; it is no GGUF file"},
      {"PK\x03\x04", "found \"PK\\x03\\x04\""},
      {GgufBytes({.version = 1}), "expected version 2 or 3, found 1"},
      {GgufBytes({.version = 4}), "expected version 2 or 3, found 4"},
      {GgufBytes({.version = 0}), "expected version 2 or 3, found 0"},
      {GgufBytes({.version = 0x03000000}), "the file is big-endian (version 03000000), expected little-endian"},
      {Counts(uint64_t{1} << 63, 0), "9223372036854775808 tensors, limit 250000"},
      {Counts(250'001, 0), "250001 tensors, limit 250000"},
      {Counts(0, uint64_t{1} << 63), "9223372036854775808 keys of metadata, limit 65536"},
      {Counts(0, 65'537), "65537 keys of metadata, limit 65536"},
      {Counts(250'000, 0), "name of tensor 1 of 250000: expected 8 bytes at byte 24"},
      {Counts(0, 65'536), "key 1 of 65536: expected 8 bytes at byte 24"},
  };
  for (const auto& [bytes, error] : files) EXPECT_THAT(ErrorOf(bytes), HasSubstr(error));
}

TEST(GgufHeaderTest, RefusesBadMetadata) {
  const std::string huge_array = GgufU32(4) + GgufU64(uint64_t{1} << 62);
  const BadFile files[] = {
      {WithKeys({GgufU32Key("k", 1), GgufU32Key("k", 1)}), "key \"k\": is there twice"},
      {WithKeys({GgufU32Key("", 1)}), "key 1 of 1 is empty"},
      {WithKeys({GgufKey("k", static_cast<GgufValueType>(13), "")}), "key \"k\": unknown type of value 13"},
      {WithKeys({GgufKey("k", static_cast<GgufValueType>(UINT32_MAX), "")}), "unknown type of value 4294967295"},
      {WithKeys({GgufKey("k", GgufValueType::kString, GgufU64(uint64_t{1} << 40))}),
       "key \"k\": a text of 1099511627776 bytes, limit 67108864"},
      {WithKeys({GgufKey("k", GgufValueType::kString, GgufU64(1000))}), "key \"k\": expected 1000 bytes at byte"},
      {Counts(0, 1) + GgufU64(uint64_t{1} << 40), "key 1 of 1: a text of 1099511627776 bytes, limit 65535"},
      {Counts(0, 1) + GgufU64(65'536), "key 1 of 1: a text of 65536 bytes, limit 65535"},
      {WithKeys({GgufArrayKey("k", GgufValueType::kArray, 1, GgufU32(4) + GgufU64(0))}),
       "key \"k\": an array of arrays is not supported"},
      {WithKeys({GgufKey("k", GgufValueType::kArray, huge_array)}),
       "key \"k\": an array of 4611686018427387904 elements, limit 16777216"},
      {WithKeys({GgufArrayKey("k", GgufValueType::kFloat64, 1 << 24, "")}),
       "key \"k\": expected 134217728 bytes at byte"},
      {WithKeys({GgufArrayKey("k", GgufValueType::kString, 1 << 24, "")}), "key \"k\": expected 8 bytes at byte"},
      {WithKeys({GgufArrayKey("k", GgufValueType::kString, 2, GgufText("a") + GgufU64(UINT64_MAX))}),
       "key \"k\": a text of 18446744073709551615 bytes"},
      {WithKeys({GgufArrayKey("k", static_cast<GgufValueType>(77), 1, "")}), "key \"k\": unknown type of value 77"},
      {WithKeys({GgufKey("k", GgufValueType::kBool, "\x02")}), "key \"k\": a bool of value 2, expected 0 or 1"},
      {WithKeys({GgufU32Key("general.alignment", 0)}),
       "key \"general.alignment\": expected a power of two up to 1048576, found 0"},
      {WithKeys({GgufU32Key("general.alignment", 3)}), "expected a power of two up to 1048576, found 3"},
      {WithKeys({GgufU32Key("general.alignment", 1u << 31)}), "up to 1048576, found 2147483648"},
      {WithKeys({GgufTextKey("general.alignment", "32")}),
       "key \"general.alignment\": expected an integer, found string"},
  };
  for (const auto& [bytes, error] : files) EXPECT_THAT(ErrorOf(bytes), HasSubstr(error));
}

TEST(GgufHeaderTest, RefusesBadTensors) {
  const int64_t huge = int64_t{1} << 62;
  const BadFile files[] = {
      {WithRows({GgufRow("t", {4}, 0, 0), GgufRow("t", {4}, 0, 32)}), "tensor \"t\": is there twice"},
      {WithRows({GgufRow("", {4}, 0, 0)}), "tensor \"\": the name is empty"},
      {WithRows({GgufRow(std::string(257, 'n'), {4}, 0, 0)}), "name of tensor 1 of 1: a text of 257 bytes, limit 256"},
      {WithRows({GgufRow("t", {}, 0, 0)}), "tensor \"t\": expected 1 to 4 dimensions, found 0"},
      {WithRows({GgufRow("t", {1, 1, 1, 1, 4}, 0, 0)}), "tensor \"t\": expected 1 to 4 dimensions, found 5"},
      {WithRows({GgufRow("t", {0, 4}, 0, 0)}), "tensor \"t\": expected dimensions of at least 1, found 0"},
      {WithRows({GgufRow("t", {-4}, 0, 0)}), "tensor \"t\": expected dimensions of at least 1, found -4"},
      {WithRows({GgufRow("t", {4}, 4, 0)}), "tensor \"t\": unknown type 4; is the file newer than this program?"},
      {WithRows({GgufRow("t", {4}, 42, 0)}), "tensor \"t\": unknown type 42"},
      {WithRows({GgufRow("t", {2, 48}, 8, 0)}),
       "tensor \"t\": rows of 48 elements do not divide into blocks of 32, as Q8_0 has"},
      {WithRows({GgufRow("t", {256, 128}, 12, 0)}), "rows of 128 elements do not divide into blocks of 256"},
      {WithRows({GgufRow("t", {huge, huge}, 0, 0)}), "tensor \"t\": size overflows"},
      {WithRows({GgufRow("t", {huge}, 0, 0)}), "tensor \"t\": size overflows"},
      {WithRows({GgufRow("t", {huge, 4, huge / 2, 1}, 1, 0)}), "tensor \"t\": size overflows"},
      {WithRows({GgufRow("t", {4}, 0, 8)}), "tensor \"t\": offset 8 is no multiple of the alignment 32"},
      {WithRows({GgufRow("t", {4}, 0, UINT64_MAX - 31)}), "offset 18446744073709551584 is beyond the end of the file"},
      {WithRows({GgufRow("t", {4}, 0, uint64_t{1} << 63)}), "offset 9223372036854775808 is beyond the end of the file"},
      {WithRows({GgufRow("t", {4}, 0, 4096)}),
       "tensor \"t\": F32 [4] of 16 bytes at byte 4160 does not fit the file, which ends at byte 4160"},
      {WithRows({GgufRow("t", {1025}, 0, 0)}), "of 4100 bytes at byte 64 does not fit the file"},
      {WithRows({GgufRow("t", {int64_t{1} << 60}, 0, 0)}), "does not fit the file"},
      {WithRows({GgufRow("t", {9}, 0, 0), GgufRow("u", {4}, 0, 32)}),
       "tensor \"u\": F32 [4] of 16 bytes at byte 128 overlaps tensor \"t\", which ends at byte 132"},
      {WithRows({GgufRow("t", {4}, 0, 64), GgufRow("u", {4}, 0, 64)}), "overlaps tensor \"t\""},
  };
  for (const auto& [bytes, error] : files) EXPECT_THAT(ErrorOf(bytes), HasSubstr(error));
}

// Of a file that claims to be huge no more is read than the limit.
TEST(GgufHeaderTest, ReadsNoMoreThanTheLimit) {
  const std::string counts = Counts(0, 65'536);
  int64_t most = 0;
  const auto header = ReadGgufHeader(int64_t{1} << 50, [&](int64_t begin, absl::Span<char> to) {
    const int64_t end = begin + static_cast<int64_t>(to.size());
    most = std::max(most, end);
    std::memset(to.data(), 0, to.size());
    const auto place = [&](int64_t at, const std::string& bytes) {
      if (at >= begin && at + static_cast<int64_t>(bytes.size()) <= end) {
        std::memcpy(to.data() + (at - begin), bytes.data(), bytes.size());
      }
    };
    place(0, counts);
    for (int i = 0; i < 3; ++i) {  // arrays of 128 MiB each
      const std::string key =
          GgufArrayKey(std::string(1, static_cast<char>('a' + i)), GgufValueType::kInt64, 1 << 24, "");
      place(static_cast<int64_t>(counts.size()) + i * (static_cast<int64_t>(key.size()) + (int64_t{1} << 27)), key);
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(header.status().message(), HasSubstr("key \"b\": the header reaches byte 268435530, limit 268435456"));
  EXPECT_LE(most, kMaxGgufHeader);
}

TEST(GgufHeaderTest, ReturnsTheErrorsOfReads) {
  const auto header = ReadGgufHeader(1000, [](int64_t, absl::Span<char>) { return absl::UnavailableError("disk"); });
  EXPECT_EQ(header.status(), absl::UnavailableError("disk"));
}

}  // namespace
}  // namespace switchyard::checkpoint
