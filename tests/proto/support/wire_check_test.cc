// Every way in which bytes can fail to be a message, each with its text and byte; and raw_message, which rests on it.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "switchyard/v1/inference.pb.h"
#include "switchyard/v1/worker.pb.h"

namespace switchyard::rpc {
namespace {

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string Tag(uint64_t field, int wire) { return Varint(field << 3 | static_cast<uint64_t>(wire)); }

std::string Bytes(uint64_t field, const std::string& content) {
  return absl::StrCat(Tag(field, 2), Varint(content.size()), content);
}

absl::Status Check(const std::string& bytes) { return CheckWire(*v1::GenerateRequest::descriptor(), bytes); }

struct BadCase {
  const char* name;
  std::string bytes;
  std::string reason;  // exactly, with the byte
};

std::vector<BadCase> BadCases() {
  const std::string overlong(11, '\xff');
  return {
      {"truncated_tag", "\x80", "truncated varint at byte 0"},
      {"truncated_value", Tag(9, 0) + "\x80", "truncated varint at byte 1"},
      {"truncated_length", Tag(3, 2), "truncated varint at byte 1"},
      {"overlong_varint", Tag(9, 0) + overlong, "varint of more than 10 bytes at byte 1"},
      {"overlong_tag", overlong, "varint of more than 5 bytes at byte 0"},
      {"tag_of_six_bytes", std::string("\x9a\x80\x80\x80\x80\x00\x01x", 8), "varint of more than 5 bytes at byte 0"},
      {"length_of_six_bytes", Tag(3, 2) + std::string("\x81\x80\x80\x80\x80\x00x", 7),
       "varint of more than 5 bytes at byte 1"},
      {"field_number_zero", std::string("\0", 1), "field number 0 or too large at byte 0"},
      {"field_number_too_large", Varint(uint64_t{1} << 33), "field number 0 or too large at byte 0"},
      {"text_as_varint", Tag(3, 0) + "\x01", "text has wire type 0, not 2 at byte 0"},
      {"number_as_text", Bytes(9, "abc"), "max_tokens has wire type 2, not 0 at byte 0"},
      {"message_as_fixed64", Tag(6, 1) + "12345678", "sampling has wire type 1, not 2 at byte 0"},
      {"double_as_fixed32", Bytes(6, Tag(1, 5) + "1234"), "temperature has wire type 5, not 1 at byte 2"},
      {"repeated_as_fixed32", Tag(8, 5) + "1234", "stop_token_ids has wire type 5, not 0 at byte 0"},
      {"length_past_the_end", Bytes(1, "ok") + Tag(3, 2) + "\x05" + "abc", "length 5 passes the end by 2 at byte 5"},
      {"length_past_the_parent", Bytes(6, Bytes(8, "").substr(0, 1) + "\x09") + "123456789",
       "length 9 passes the end by 9 at byte 3"},
      {"length_of_2_to_63", Tag(3, 2) + Varint(uint64_t{1} << 63),
       absl::StrCat("length ", uint64_t{1} << 63, " passes the end by ", uint64_t{1} << 63, " at byte 1")},
      {"bad_utf8", Bytes(3, "ab\xff"), "text is not UTF-8 at byte 4"},
      {"cut_utf8", Bytes(3, "ab\xe2\x82"), "text is not UTF-8 at byte 4"},
      {"lone_surrogate", Bytes(3, "\xed\xa0\x80"), "text is not UTF-8 at byte 2"},
      {"overlong_utf8", Bytes(3, "\xc0\xaf"), "text is not UTF-8 at byte 2"},
      {"bad_utf8_in_repeated", Bytes(7, "ok") + Bytes(7, "\xfe"), "stop is not UTF-8 at byte 6"},
      {"group_start", Tag(1, 3) + Tag(1, 4), "a group at byte 0"},
      {"group_end", Tag(99, 4), "a group at byte 0"},
      {"wire_type_6", Tag(99, 6), "wire type 6 at byte 0"},
      {"wire_type_7", Tag(1, 7), "wire type 7 at byte 0"},
      {"second_singular", Bytes(1, "a") + Bytes(1, "a"), "second request_id at byte 3"},
      {"second_in_map_entry", Bytes(6, Bytes(8, Tag(1, 0) + "\x01" + Tag(1, 0) + "\x02")), "second key at byte 6"},
      {"second_optional", Tag(9, 0) + "\x01" + Tag(9, 0) + "\x01", "second max_tokens at byte 2"},
      {"two_oneof_members", Bytes(3, "a") + Bytes(4, ""), "more than one of prompt at byte 3"},
      {"same_oneof_member_twice", Bytes(3, "a") + Bytes(3, "b"), "more than one of prompt at byte 3"},
      {"truncated_fixed64", Bytes(6, Tag(1, 1) + "1234567"), "truncated field at byte 3"},
      {"truncated_unknown_fixed32", Tag(99, 5) + "123", "truncated field at byte 2"},
      {"bad_packed_varint", Bytes(8, "\x01\x80"), "truncated varint at byte 3"},
  };
}

class WireCheckTest : public testing::TestWithParam<BadCase> {};

TEST_P(WireCheckTest, SaysWhyAndWhere) {
  const absl::Status status = Check(GetParam().bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "request is not a valid GenerateRequest: " + GetParam().reason);
  const ErrorView view = ViewError(ToGrpcStatus(status, "r"));
  EXPECT_EQ(view.reason, "BAD_REQUEST_BYTES");
  EXPECT_EQ(view.details.metadata().at("actual"), GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(Faults, WireCheckTest, testing::ValuesIn(BadCases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WireCheck, TakesEveryGoodForm) {
  EXPECT_TRUE(Check("").ok());
  v1::GenerateRequest request;
  request.set_request_id("a");
  request.set_text("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80");
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_seed(~uint64_t{0});
  (*request.mutable_sampling()->mutable_logit_bias())[3] = 1.5f;
  (*request.mutable_sampling()->mutable_logit_bias())[-1] = 2;
  request.add_stop_token_ids(-7);
  request.add_stop_token_ids(1 << 30);
  request.set_max_tokens(-1);
  EXPECT_TRUE(Check(request.SerializeAsString()).ok());
  // Repeated numbers: packed, one by one, and both at once.
  EXPECT_TRUE(Check(Tag(8, 0) + "\x05" + Tag(8, 0) + "\x06").ok());
  EXPECT_TRUE(Check(Bytes(8, "\x05\x06") + Tag(8, 0) + "\x07" + Bytes(8, "")).ok());
  // Fields of a newer client, of every wire type, as often as they like.
  const std::string unknown =
      Tag(1000, 0) + "\x01" + Tag(1001, 1) + "12345678" + Bytes(1002, "\xff\xfe") + Tag(1003, 5) + "1234";
  EXPECT_TRUE(Check(unknown + unknown).ok());
  EXPECT_TRUE(Check(Bytes(3, std::string("a\0b", 3))).ok()) << "NUL is a character";
}

TEST(WireCheck, PackedFixedWidthMustFit) {
  const auto& type = *v1::SamplingPlan::descriptor();
  EXPECT_TRUE(CheckWire(type, Bytes(9, "12345678")).ok());
  EXPECT_EQ(std::string(CheckWire(type, Bytes(9, "1234567")).message()),
            "request is not a valid SamplingPlan: bias_values: 7 packed bytes are no multiple of 4 at byte 1");
}

std::string Nested(int lists) {
  std::string value;  // google.protobuf.Value { list_value { values { ... } } }
  for (int i = 0; i < lists; ++i) value = Bytes(6, Bytes(1, value));
  return value;
}

TEST(WireCheck, NestingIsBounded) {
  const auto& type = *google::protobuf::Value::descriptor();
  EXPECT_TRUE(CheckWire(type, Nested(kMaxMessageDepth / 2)).ok());
  const absl::Status status = CheckWire(type, Nested(kMaxMessageDepth / 2 + 1));
  EXPECT_NE(std::string(status.message()).find("nested deeper than 32 at byte "), std::string::npos) << status;
  EXPECT_EQ(CheckWire(type, Nested(5000)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(WireCheck, JunkNeverPassesWhatTheParserRefuses) {
  // 100 000 bytes of one letter, and pseudo-random ones: no crash, and the parser agrees with every OK.
  for (int c = 0; c < 256; ++c) {
    const std::string junk(100000, static_cast<char>(c));
    v1::GenerateRequest parsed;
    const absl::Status status = Check(junk);
    if (status.ok()) {
      EXPECT_TRUE(parsed.ParseFromString(junk)) << c;
    } else {
      EXPECT_NE(std::string(status.message()).find(" at byte "), std::string::npos);
    }
  }
  uint64_t state = 1;
  for (int round = 0; round < 20000; ++round) {
    std::string junk;
    for (int i = 0; i < round % 24; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      junk.push_back(static_cast<char>(state >> 56 & (i % 3 == 0 ? 0x7f : 0xff)));
    }
    v1::GenerateRequest parsed;
    if (Check(junk).ok()) {
      EXPECT_TRUE(parsed.ParseFromString(junk)) << absl::CHexEscape(junk);
    }
  }
}

TEST(RawMessage, ParsesWhatItSerialized) {
  v1::AbortRequest request;
  request.set_request_id("abc");
  v1::AbortRequest parsed;
  ASSERT_TRUE(ParseRaw(SerializeRaw(request), &parsed).ok());
  EXPECT_EQ(parsed.request_id(), "abc");
  EXPECT_TRUE(ParseRaw(grpc::ByteBuffer(), &parsed).ok()) << "an empty message";
  grpc::Slice pieces[2] = {grpc::Slice(Bytes(1, "x")), grpc::Slice(Bytes(1, "y"))};
  EXPECT_EQ(std::string(ParseRaw(grpc::ByteBuffer(pieces, 2), &parsed).message()),
            "request is not a valid AbortRequest: second request_id at byte 3");
}

}  // namespace
}  // namespace switchyard::rpc
