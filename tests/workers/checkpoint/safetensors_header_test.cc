// Every claim of a header that a file can break, by a table: header text, bytes of data, what the message must say.
#include "workers/checkpoint/safetensors/safetensors_header.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string Repeat(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// One tensor "x" with these members.
std::string X(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"x":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
}

struct Case {
  const char* name;
  std::string json;
  int64_t data_bytes;
  std::string message;
};

std::vector<Case> BadJson() {
  return {
      {"empty", "", 0, "header: syntax error at byte 0"},
      {"space_first", R"( {"x":1})", 0, "header: syntax error at byte 0"},
      {"list", "[]", 0, "header: syntax error at byte 0"},
      {"string", R"("x")", 0, "header: syntax error at byte 0"},
      {"unclosed", R"({"x":)", 0, "header: syntax error at byte 6"},
      {"half", R"({"x)", 0, "header: syntax error at byte 4"},
      {"junk_behind", R"({}x)", 0, "header: syntax error at byte 3"},
      {"second_value", R"({}{})", 0, "header: syntax error at byte 3"},
      {"nul_behind", std::string("{}\0", 3), 0, "header: syntax error at byte 3 near \"\\x00\""},
      {"comment", R"({}//)", 0, "header: syntax error"},
      {"trailing_comma", R"({"x":1,})", 0, "header: syntax error at byte 8"},
      {"single_quotes", R"({'x':1})", 0, "header: syntax error at byte 2"},
      {"bad_utf8_key", "{\"\xff\":1}", 0, "header: invalid UTF-8 at byte 3"},
      {"overlong_utf8", "{\"\xc0\x80\":1}", 0, "header: invalid UTF-8"},
      {"surrogate_utf8", "{\"\xed\xa0\x80\":1}", 0, "header: invalid UTF-8"},
      {"lone_surrogate_escape", R"({"\ud800":1})", 0, "header: syntax error"},
      {"control_character", "{\"a\nb\":1}", 0, "header: syntax error"},
      {"byte_order_mark", "\xef\xbb\xbf{}", 0, "header: syntax error at byte 0"},
      {"duplicate_tensor", R"({"x":1,"x":1})", 0, "header: duplicate key \"x\""},
      {"duplicate_member", R"({"x":{"dtype":"F32","dtype":"F32"}})", 0, "header: duplicate key \"dtype\""},
      {"duplicate_by_escape", R"({"x":1,"\u0078":1})", 0, "header: duplicate key \"x\""},
      {"deep", R"({"x":)" + Repeat("[", 9) + Repeat("]", 9) + "}", 0, "header: nested deeper than 8"},
      {"very_deep", R"({"x":)" + Repeat("[", 100000), 0, "header: nested deeper than 8"},
      {"million_values", R"({"x":[)" + Repeat("0,", 4'000'001) + "0]}", 0, "header: more than 4000000 values"},
      {"many_keys",
       [] {
         std::string out = "{";
         for (int i = 0; i < 250'001; ++i) absl::StrAppend(&out, i == 0 ? "" : ",", "\"", i, "\":0");
         return out + "}";
       }(),
       0, "header: 250001 keys, limit 250000"},
      {"megabyte_name", "{\"" + std::string(1 << 20, 'a') + "\":1}", 0, "header: key of 1048576 bytes, limit 1024"},
      {"nan", R"({"x":NaN})", 0, "header: syntax error at byte 6"},
      {"infinity", R"({"x":Infinity})", 0, "header: syntax error at byte 6"},
      {"huge_number", R"({"x":1e400})", 0, "header: number out of range at byte"},
      {"hex_number", R"({"x":0x10})", 0, "header: syntax error"},

      {"metadata_list", R"({"__metadata__":[]})", 0, "header: __metadata__ is no object"},
      {"metadata_number", R"({"__metadata__":{"format":1}})", 0, "header: __metadata__[\"format\"] is no string"},
  };
}

const std::string kPair = R"("dtype":"F32","shape":[2])";

std::vector<Case> BadTypesAndShapes() {
  return {
      {"tensor_number", R"({"x":1})", 0, "tensor \"x\": its description is no object"},
      {"tensor_null", R"({"x":null})", 0, "tensor \"x\": its description is no object"},
      {"no_dtype", R"({"x":{"shape":[2],"data_offsets":[0,8]}})", 8, "tensor \"x\": \"dtype\" is missing"},
      {"no_shape", R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", 8, "tensor \"x\": \"shape\" is missing"},
      {"no_offsets", "{\"x\":{" + kPair + "}}", 8, "tensor \"x\": \"data_offsets\" is missing"},
      {"offsets_misnamed", "{\"x\":{" + kPair + ",\"offsets\":[0,8]}}", 8, "tensor \"x\": \"data_offsets\" is missing"},
      {"unknown_dtype", X("\"F31\"", "[2]", "[0,8]"), 8, "tensor \"x\": unknown dtype \"F31\""},
      {"lower_dtype", X("\"f32\"", "[2]", "[0,8]"), 8, "tensor \"x\": unknown dtype \"f32\""},
      {"dtype_number", X("32", "[2]", "[0,8]"), 8, "tensor \"x\": dtype is no string"},
      {"dtype_empty", X("\"\"", "[2]", "[0,8]"), 8, "tensor \"x\": unknown dtype \"\""},
      {"dtype_escaped", X("\"\\u0000\"", "[2]", "[0,8]"), 8, "unknown dtype \"\\x00\""},
      {"shape_number", X("\"F32\"", "2", "[0,8]"), 8, "tensor \"x\": shape is no list"},
      {"shape_string", X("\"F32\"", "[\"2\"]", "[0,8]"), 8, "tensor \"x\": shape holds something that is no integer"},
      {"shape_float", X("\"F32\"", "[2.0]", "[0,8]"), 8, "tensor \"x\": shape holds something that is no integer"},
      {"shape_negative", X("\"F32\"", "[-2]", "[0,8]"), 8, "tensor \"x\": shape holds something that is no integer"},
      {"shape_bool", X("\"F32\"", "[true]", "[0,4]"), 4, "tensor \"x\": shape holds something that is no integer"},
      {"shape_2_53", X("\"U8\"", "[9007199254740993]", "[0,8]"), 8, "shape holds something that is no integer"},
      {"shape_2_64", X("\"U8\"", "[18446744073709551617]", "[0,8]"), 8, "shape holds something that is no integer"},
      {"shape_nested", X("\"F32\"", "[[2]]", "[0,8]"), 8, "tensor \"x\": shape holds something that is no integer"},
      {"rank_9", X("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "tensor \"x\": rank 9, limit 8"},
      {"product_overflows", X("\"F32\"", "[4294967296,4294967296]", "[0,8]"), 8,
       "tensor \"x\": shape product overflows"},
      {"product_wraps_to_4", X("\"F32\"", "[4194305,4194305,211106198978564]", "[0,16]"), 16,
       "tensor \"x\": shape product overflows"},
      {"dtype_overflows", X("\"F64\"", "[1152921504606846,1024]", "[0,8]"), 8, "tensor \"x\": shape product overflows"},
      {"overflow_behind_zero", X("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0,
       "tensor \"x\": shape product overflows"},
      {"half_byte", X("\"F4\"", "[3]", "[0,2]"), 2, "tensor \"x\": shape [3] of 4 bits fills no whole byte"},
  };
}

std::vector<Case> BadOffsets() {
  return {
      {"offsets_number", X("\"F32\"", "[2]", "8"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_one", X("\"F32\"", "[2]", "[8]"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_three", X("\"F32\"", "[2]", "[0,8,16]"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_negative", X("\"F32\"", "[2]", "[-8,0]"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_float", X("\"F32\"", "[2]", "[0.0,8.0]"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_wrap", X("\"F32\"", "[2]", "[18446744073709551608,8]"), 8, "tensor \"x\": data_offsets is no pair"},
      {"offsets_reversed", X("\"F32\"", "[2]", "[8,0]"), 8,
       "tensor \"x\": offsets [8,0) do not match: they end before"},
      {"offsets_beyond", X("\"F32\"", "[2]", "[4,12]"), 8,
       "offsets [4,12) do not match the file: its data has 8 bytes"},
      {"offsets_short", X("\"F32\"", "[2]", "[0,4]"), 8, "tensor \"x\": offsets [0,4) do not match F32 [2]: 8 bytes"},
      {"offsets_long", X("\"F32\"", "[2]", "[0,16]"), 16, "tensor \"x\": offsets [0,16) do not match F32 [2]: 8 bytes"},
      {"scalar_size", X("\"F32\"", "[]", "[0,8]"), 8, "tensor \"x\": offsets [0,8) do not match F32 []: 4 bytes"},
      {"zero_size_with_bytes", X("\"F32\"", "[0,5]", "[0,4]"), 4, "offsets [0,4) do not match F32 [0, 5]: 0 bytes"},
      {"hole_first", X("\"F32\"", "[2]", "[4,12]"), 12,
       "offsets [4,12) do not match the tensor before, which ends at 0: hole"},
      {"hole_between", "{\"a\":{" + kPair + ",\"data_offsets\":[0,8]},\"b\":{" + kPair + ",\"data_offsets\":[12,20]}}",
       20, "tensor \"b\": offsets [12,20) do not match the tensor before, which ends at 8: hole"},
      {"overlap", "{\"a\":{" + kPair + ",\"data_offsets\":[0,8]},\"b\":{" + kPair + ",\"data_offsets\":[4,12]}}", 12,
       "tensor \"b\": offsets [4,12) do not match the tensor before, which ends at 8: overlap"},
      {"shared_bytes", "{\"a\":{" + kPair + ",\"data_offsets\":[0,8]},\"b\":{" + kPair + ",\"data_offsets\":[0,8]}}", 8,
       "tensor \"b\": offsets [0,8) do not match the tensor before, which ends at 8: overlap"},
      {"data_left", X("\"F32\"", "[2]", "[0,8]"), 9, "header: tensors end at byte 8 of the data, the file has 9"},
      {"no_tensor_but_data", "{}", 1, "header: tensors end at byte 0 of the data, the file has 1"},
      {"name_is_cut", R"({")" + std::string(100, 'n') + R"(":1})", 0, "tensor \"" + std::string(64, 'n') + "...\""},
  };
}

TEST(SafetensorsHeaderTest, EveryBadHeaderIsRefusedWithItsReason) {
  std::vector<Case> cases;
  for (const auto& table : {BadJson(), BadTypesAndShapes(), BadOffsets()}) {
    cases.insert(cases.end(), table.begin(), table.end());
  }
  EXPECT_GE(cases.size(), 60u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto tensors = ParseSafetensorsHeader(c.json, 100, c.data_bytes);
    ASSERT_FALSE(tensors.ok());
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(c.message));
    EXPECT_LT(tensors.status().message().size(), 400u);  // never echoes the input at length
  }
}

struct Good {
  const char* name;
  std::string json;
  int64_t data_bytes;
  size_t num_tensors;
};

TEST(SafetensorsHeaderTest, WhatTheFormatAllowsIsAccepted) {
  const std::vector<Good> cases = {
      {"no_tensors", "{}", 0, 0},
      {"metadata_only", R"({"__metadata__":{"format":"pt","x":""}})", 0, 0},
      {"padded_by_spaces", X("\"F32\"", "[2]", "[0,8]") + "     ", 8, 1},
      {"scalar", X("\"F32\"", "[]", "[0,4]"), 4, 1},
      {"zero_size", X("\"F32\"", "[0,4]", "[0,0]"), 0, 1},
      {"zero_size_shares_an_offset",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
       R"("c":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"d":{"dtype":"U8","shape":[0],"data_offsets":[7,7]}})",
       7, 4},
      {"unsorted",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       7, 2},
      {"unaligned",
       R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})",
       7, 2},
      {"rank_8", X("\"U8\"", "[1,1,1,1,1,1,1,5]", "[0,5]"), 5, 1},
      {"sub_byte", X("\"F4\"", "[4]", "[0,2]"), 2, 1},
      {"six_bits", X("\"F6_E2M3\"", "[4]", "[0,3]"), 3, 1},
      {"other_member_is_ignored", R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"note":"n"}})", 1, 1},
  };
  for (const Good& c : cases) {
    SCOPED_TRACE(c.name);
    const auto tensors = ParseSafetensorsHeader(c.json, 100, c.data_bytes);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(tensors->size(), c.num_tensors);
    int64_t at = 100;
    for (const auto& [name, entry] : *tensors) {
      EXPECT_EQ(entry.begin, at) << name;
      at += entry.bytes;
    }
  }
}

// Bytes of a right header, changed at random: refused, or tensors that tile the data.
TEST(SafetensorsHeaderTest, RandomDamageNeverGetsThrough) {
  const std::string good =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"c":{"dtype":"I64","shape":[0],"data_offsets":[26,26]}})";
  ASSERT_TRUE(ParseSafetensorsHeader(good, 8, 26).ok());
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1);
      } else {
        text[at] = static_cast<char>(random() % 2 == 0 ? "0123456789,:[]{}\"-"[random() % 18] : random() % 256);
      }
    }
    const auto tensors = ParseSafetensorsHeader(text, 8, 26);
    if (!tensors.ok()) continue;
    int64_t at = 8;
    for (const auto& [name, entry] : *tensors) {
      ASSERT_EQ(entry.begin, at) << text;
      ASSERT_GE(entry.bytes, 0) << text;
      at += entry.bytes;
    }
    ASSERT_EQ(at, 8 + 26) << text;
  }
}

}  // namespace
}  // namespace switchyard::checkpoint
