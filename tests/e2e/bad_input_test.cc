// The bad-input catalogue: each case with its code, reason and message; afterwards the server answers as before.
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using absl::StatusCode;
using v1::GenerateRequest;

constexpr char kService[] = "/switchyard.v1.InferenceService/";

// Errors must not contain addresses or paths of this machine.
constexpr char kLocation[] = "[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+|/proc/|/tmp/|/dev/|/home/|/usr/|deploy/";

// ---- requests that parse, with a field that is wrong

struct FieldCase {
  const char* name;
  std::function<void(GenerateRequest*)> change;
  StatusCode code;
  const char* reason;
  const char* message;  // a regular expression that is found in it
};

const double kNan = std::nan(""), kInf = std::numeric_limits<double>::infinity();

#define SAMPLING(setter, value) [](GenerateRequest* r) { r->mutable_sampling()->setter(value); }
#define FIELD(setter, value) [](GenerateRequest* r) { r->setter(value); }

const FieldCase kFieldCases[] = {
    {"NoPrompt", FIELD(clear_prompt, ), StatusCode::kInvalidArgument, "BAD_FIELD",
     "prompt: exactly one of text, token_ids"},
    {"EmptyText",
     [](GenerateRequest* r) {
       r->set_text("");
       r->set_add_special_tokens(false);
     },
     StatusCode::kInvalidArgument, "BAD_FIELD", "prompt: is empty"},
    {"EmptyIds", [](GenerateRequest* r) { r->mutable_token_ids(); }, StatusCode::kInvalidArgument, "BAD_FIELD",
     "prompt: is empty"},
    {"NegativeId", [](GenerateRequest* r) { r->mutable_token_ids()->add_ids(-1); }, StatusCode::kInvalidArgument,
     "BAD_FIELD", "token_ids\\[0\\]: -1 outside \\[0, [0-9]+\\)"},
    {"IdBeyondTheVocabulary",
     [](GenerateRequest* r) {
       r->mutable_token_ids()->add_ids(3);
       r->mutable_token_ids()->add_ids(2147483647);
     },
     StatusCode::kInvalidArgument, "BAD_FIELD", "token_ids\\[1\\]: 2147483647 outside \\[0, [0-9]+\\)"},
    {"NoMessages", [](GenerateRequest* r) { r->mutable_messages(); }, StatusCode::kInvalidArgument, "BAD_FIELD",
     "messages: is empty"},
    {"MaxTokensZero", FIELD(set_max_tokens, 0), StatusCode::kInvalidArgument, "BAD_FIELD",
     "max_tokens: must be at least 1, is 0"},
    {"MaxTokensNegative", FIELD(set_max_tokens, -5), StatusCode::kInvalidArgument, "BAD_FIELD",
     "max_tokens: must be at least 1, is -5"},
    {"MaxTokensHuge", FIELD(set_max_tokens, 2147483647), StatusCode::kInvalidArgument, "PROMPT_TOO_LONG",
     "prompt [0-9]+ \\+ max_tokens 2147483647 > context 1024"},
    {"PromptBeyondTheContext", [](GenerateRequest* r) { r->mutable_token_ids()->mutable_ids()->Resize(1024, 5); },
     StatusCode::kInvalidArgument, "PROMPT_TOO_LONG", "1024 tokens .* exceed the context of 1024"},
    {"MinTokensAboveMax", FIELD(set_min_tokens, 9), StatusCode::kInvalidArgument, "BAD_FIELD",
     "min_tokens: must be within \\[0, 4\\], is 9"},
    {"TemperatureNan", SAMPLING(set_temperature, kNan), StatusCode::kInvalidArgument, "BAD_FIELD",
     "temperature: must be within .*nan"},
    {"TemperatureInf", SAMPLING(set_temperature, kInf), StatusCode::kInvalidArgument, "BAD_FIELD",
     "temperature: must be within .*inf"},
    {"TemperatureMinusInf", SAMPLING(set_temperature, -kInf), StatusCode::kInvalidArgument, "BAD_FIELD",
     "temperature: must be within"},
    {"TemperatureNegative", SAMPLING(set_temperature, -0.1), StatusCode::kInvalidArgument, "BAD_FIELD",
     "temperature: must be within .* is -0.1"},
    {"TemperatureHuge", SAMPLING(set_temperature, 1e30), StatusCode::kInvalidArgument, "BAD_FIELD",
     "temperature: must be within .* is 1e\\+30"},
    {"TopPZero", SAMPLING(set_top_p, 0), StatusCode::kInvalidArgument, "BAD_FIELD",
     "top_p: must be within \\(0, 1\\], is 0"},
    {"TopPNegative", SAMPLING(set_top_p, -0.5), StatusCode::kInvalidArgument, "BAD_FIELD",
     "top_p: must be within \\(0, 1\\], is -0.5"},
    {"TopPAboveOne", SAMPLING(set_top_p, 1.5), StatusCode::kInvalidArgument, "BAD_FIELD",
     "top_p: must be within .*1\\], is 1.5"},
    {"TopPNan", SAMPLING(set_top_p, kNan), StatusCode::kInvalidArgument, "BAD_FIELD", "top_p"},
    {"TopKBelowMinusOne", SAMPLING(set_top_k, -2), StatusCode::kInvalidArgument, "BAD_FIELD",
     "top_k: must be within .* is -2"},
    {"MinPAboveOne", SAMPLING(set_min_p, 1.1), StatusCode::kInvalidArgument, "BAD_FIELD", "min_p"},
    {"PresencePenaltyInf", SAMPLING(set_presence_penalty, kInf), StatusCode::kInvalidArgument, "BAD_FIELD",
     "presence_penalty"},
    {"FrequencyPenaltyInf", SAMPLING(set_frequency_penalty, -kInf), StatusCode::kInvalidArgument, "BAD_FIELD",
     "frequency_penalty"},
    {"FrequencyPenaltyNan", SAMPLING(set_frequency_penalty, kNan), StatusCode::kInvalidArgument, "BAD_FIELD",
     "frequency_penalty: must be within \\[-2, 2\\], is nan"},
    {"RepetitionPenaltyInf", SAMPLING(set_repetition_penalty, kInf), StatusCode::kInvalidArgument, "BAD_FIELD",
     "repetition_penalty: must be within .*, is inf"},
    {"RepetitionPenaltyZero", SAMPLING(set_repetition_penalty, 0), StatusCode::kInvalidArgument, "BAD_FIELD",
     "repetition_penalty: must be within \\(0, 10\\], is 0"},
    {"ChoicesZero", FIELD(set_n, 0), StatusCode::kInvalidArgument, "BAD_FIELD",
     "n: must be within \\[1, [0-9]+\\], is 0"},
    {"ChoicesMany", FIELD(set_n, 16385), StatusCode::kInvalidArgument, "BAD_FIELD",
     "n: must be within \\[1, [0-9]+\\], is 16385"},
    {"LogprobsMany", FIELD(set_logprobs, 21), StatusCode::kInvalidArgument, "BAD_FIELD",
     "logprobs: must be within \\[0, 20\\], is 21"},
    {"PromptLogprobsNegative", FIELD(set_prompt_logprobs, -1), StatusCode::kInvalidArgument, "BAD_FIELD",
     "prompt_logprobs: must be within"},
    {"StopsMany",
     [](GenerateRequest* r) {
       for (int i = 0; i < 65; ++i) r->add_stop("x");
     },
     StatusCode::kInvalidArgument, "BAD_FIELD", "stop: 65 strings, limit 64"},
    {"StopEmpty", FIELD(add_stop, ""), StatusCode::kInvalidArgument, "BAD_FIELD",
     "stop\\[0\\]: must have 1 to 1024 bytes, has 0"},
    {"StopLong", FIELD(add_stop, std::string(1025, 'x')), StatusCode::kInvalidArgument, "BAD_FIELD",
     "stop\\[0\\]: must have 1 to 1024 bytes, has 1025"},
    {"StopIdBeyond", FIELD(add_stop_token_ids, 9999999), StatusCode::kInvalidArgument, "BAD_FIELD",
     "stop_token_ids\\[0\\]: 9999999 outside"},
    {"BiasMany",
     [](GenerateRequest* r) {
       for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
     },
     StatusCode::kInvalidArgument, "BAD_FIELD", "logit_bias: 1025 entries, limit 1024"},
    {"BiasInf", [](GenerateRequest* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = INFINITY; },
     StatusCode::kInvalidArgument, "BAD_FIELD", "logit_bias: must be finite"},
    {"BiasNan", [](GenerateRequest* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = NAN; },
     StatusCode::kInvalidArgument, "BAD_FIELD", "logit_bias: must be finite"},
    {"BiasBeyond", [](GenerateRequest* r) { (*r->mutable_sampling()->mutable_logit_bias())[-3] = 1; },
     StatusCode::kInvalidArgument, "BAD_FIELD", "logit_bias: token -3 outside"},
    {"UnknownModel", FIELD(set_model, "gpt"), StatusCode::kNotFound, "MODEL_NOT_FOUND",
     "model \"gpt\" is not served here"},
    {"LongRequestId", FIELD(set_request_id, std::string(129, 'x')), StatusCode::kInvalidArgument, "BAD_FIELD",
     "request_id: 129 bytes, limit 128"},
};

class BadFieldTest : public SharedServerTest, public testing::WithParamInterface<FieldCase> {};

TEST_P(BadFieldTest, IsRefusedWithItsReason) {
  GenerateRequest request = TextRequest("The", 4);
  GetParam().change(&request);
  const StreamSeen seen = Generate(*client_, request);
  EXPECT_EQ(seen.end.code(), GetParam().code) << seen.end;
  const client::ErrorDescription error = client::Describe(seen.end);
  EXPECT_EQ(error.reason, GetParam().reason);
  EXPECT_THAT(error.message, testing::ContainsRegex(GetParam().message));
  EXPECT_TRUE(error.metadata.count("field")) << "the details name no field";
  EXPECT_THAT(error.message, testing::Not(testing::ContainsRegex(kLocation)));
  EXPECT_TRUE(seen.choices.empty());
}

INSTANTIATE_TEST_SUITE_P(Catalogue, BadFieldTest, testing::ValuesIn(kFieldCases),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- bytes that are no message

struct BytesCase {
  const char* name;
  std::string bytes;
  const char* message;
};

std::string Repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

const BytesCase kBytesCases[] = {
    {"Junk", std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12),
     "varint of more than 5 bytes at byte 0"},
    {"TruncatedLength", std::string("\x1a\x05hi", 4), "length 5 passes the end by 3 at byte 1"},
    {"TruncatedVarint", std::string("\x48\x80", 2), "truncated varint at byte 1"},
    {"WrongWireType", std::string("\x08\x01", 2), "request_id has wire type 0, not 2 at byte 0"},
    {"FieldZero", std::string("\x02\x00", 2), "field number 0 or too large at byte 0"},
    {"GroupTags", Repeated("\x0b", 100000), "a group at byte 0"},
    {"BadUtf8", std::string("\x1a\x03hi\xff", 5), "text is not UTF-8 at byte 4"},
    {"LoneSurrogate", std::string("\x1a\x03\xed\xa0\x80", 5), "text is not UTF-8 at byte 2"},
    {"TextAndIds", std::string("\x1a\x02hi\x22\x02\x08\x01", 8), "more than one of prompt at byte 4"},
    {"TextAndMessages", std::string("\x1a\x02hi\x2a\x00", 6), "more than one of prompt at byte 4"},
    {"IdsTwice", std::string("\x22\x02\x08\x01\x22\x02\x08\x01", 8), "more than one of prompt at byte 4"},
    {"FieldTwice", std::string("\x48\x01\x48\x02", 4), "second max_tokens at byte 2"},
    {"LengthOf4GB", std::string("\x1a\xff\xff\xff\xff\x0f", 6), "length 4294967295 passes the end"},
    {"TruncatedDouble", std::string("\x32\x03\x09\x00\x00", 5), "truncated field at byte 3"},
};

class BadBytesTest : public SharedServerTest, public testing::WithParamInterface<BytesCase> {};

TEST_P(BadBytesTest, IsRefusedWithReasonAndByte) {
  const RawAnswer answer =
      RawCall(client_->channel(), absl::StrCat(kService, "Generate"), GetParam().bytes, absl::Seconds(20));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(rpc::ViewError(answer.status).reason, "BAD_REQUEST_BYTES");
  EXPECT_THAT(answer.status.error_message(), testing::HasSubstr("request is not a valid GenerateRequest: "));
  EXPECT_THAT(answer.status.error_message(), testing::HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Catalogue, BadBytesTest, testing::ValuesIn(kBytesCases),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- the rest

class BadCallTest : public SharedServerTest {};

TEST_F(BadCallTest, EveryMethodSaysWhyBytesAreWrong) {
  for (const char* method : {"Tokenize", "Detokenize", "GetModelInfo", "Abort"}) {
    const RawAnswer answer =
        RawCall(client_->channel(), absl::StrCat(kService, method), std::string("\x0a\x7f", 2), absl::Seconds(20));
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(answer.status.error_message(),
                testing::ContainsRegex(absl::StrCat("not a valid ", method, "Request: .* at byte")))
        << method;
  }
}

TEST_F(BadCallTest, UnknownMethodsAreUnimplemented) {
  for (const char* method : {"/switchyard.v1.InferenceService/Nonsense", "/nonsense.Service/Generate", "/"}) {
    EXPECT_EQ(RawCall(client_->channel(), method, "", absl::Seconds(20)).status.error_code(),
              grpc::StatusCode::UNIMPLEMENTED)
        << method;
  }
}

TEST_F(BadCallTest, AMessageAboveTheLimitIsRefused) {
  const RawAnswer answer = RawCall(client_->channel(), absl::StrCat(kService, "Generate"),
                                   std::string((4 << 20) + 1, 'x'), absl::Seconds(20));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.status.error_message(), testing::HasSubstr("larger than max"));
}

TEST_F(BadCallTest, MetadataOf20KilobytesIsRefused) {
  const RawAnswer answer =
      RawCall(client_->channel(), absl::StrCat(kService, "Generate"), TextRequest("The", 2).SerializeAsString(),
              absl::Seconds(20), {.metadata = {{"x-large", std::string(20000, 'x')}}});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(answer.status.error_message(), testing::ContainsRegex("metadata size exceeds .*limit"));
}

// A request is one message.
TEST_F(BadCallTest, AClientThatNeverEndsItsStreamIsAnswered) {
  const RawAnswer answer = RawCall(client_->channel(), absl::StrCat(kService, "Generate"),
                                   TextRequest("The", 2).SerializeAsString(), absl::Seconds(20), {.half_close = false});
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_GE(answer.messages.size(), 1u);
  EXPECT_LE(answer.messages.size(), 2u) << "two tokens, once";
}

TEST_F(BadCallTest, ASecondMessageIsRefused) {
  const RawAnswer answer = RawCall(client_->channel(), absl::StrCat(kService, "Generate"),
                                   TextRequest("The", 900).SerializeAsString(), absl::Seconds(20), {.times = 2});
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(answer.status.error_message(), testing::HasSubstr("a second request message"));
}

TEST_F(BadCallTest, EverySeedIsLegal) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}}) {
    GenerateRequest request = TextRequest("The", 2);
    request.mutable_sampling()->set_seed(seed);
    const StreamSeen seen = Generate(*client_, request);
    EXPECT_TRUE(seen.ok()) << seen.end;
    EXPECT_EQ(seen.seed, seed);
  }
}

TEST_F(BadCallTest, DetokenizeAndTokenizeCheckTheirFields) {
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids(-7);
  EXPECT_THAT(std::string(client_->Detokenize(detokenize).status().message()),
              testing::ContainsRegex("token_ids\\[0\\]: -7 outside \\[0, "));
  EXPECT_THAT(std::string(client_->Tokenize({}).status().message()),
              testing::HasSubstr("exactly one of text, messages"));
  EXPECT_THAT(std::string(client_->Abort("").message()), testing::HasSubstr("request_id: is empty"));
}

// Unusual but valid input.
TEST_F(BadCallTest, AwkwardTextIsServed) {
  for (const std::string& text : {std::string("a\0b", 3), std::string(3000, '_'), std::string("<|endoftext|><s></s>"),
                                  std::string("\xef\xbf\xbf\xf0\x9f\x91\xa9")}) {
    v1::TokenizeRequest tokenize;
    tokenize.set_text(text);
    const auto tokens = client_->Tokenize(tokenize);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    if (!tokens.ok() || tokens->token_ids_size() > 1000) continue;
    const StreamSeen seen = Generate(*client_, TextRequest(text, 2));
    EXPECT_TRUE(seen.ok()) << seen.end;
  }
}

TEST_F(BadCallTest, AMegabyteOfOneLetterIsRefusedSoon) {
  // Work that grows with the square of the text would take many minutes.
  const auto hasty = server_->Connect(absl::Seconds(30));
  ASSERT_NE(hasty, nullptr);
  const StreamSeen seen = Generate(*hasty, TextRequest(std::string(1 << 20, 'a'), 2));
  EXPECT_EQ(client::Describe(seen.end).reason, "PROMPT_TOO_LONG") << seen.end;
}

}  // namespace
}  // namespace switchyard
