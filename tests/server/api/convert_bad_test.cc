// The catalogue of bad requests that are well-formed protobuf: each with code, reason, message and metadata.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "server/api/convert.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Code = absl::StatusCode;
using Generate = v1::GenerateRequest;

struct BadRequest {
  const char* name;
  void (*spoil)(Generate* request);  // changes a good request, whose prompt is token_ids [1, 2, 3]
  std::string message;
  std::string field;
  std::string limit;
  std::string actual;
  const char* reason = "BAD_FIELD";
  Code code = Code::kInvalidArgument;
};

BadRequest Range(const char* name, void (*spoil)(Generate*), const std::string& field, const std::string& limit,
                 const std::string& actual) {
  return {name, spoil, absl::StrCat(field, ": must be within ", limit, ", is ", actual), field, limit, actual};
}

std::vector<BadRequest> SamplingCases() {
  const auto bias = "sampling.logit_bias";
  return {
      Range(
          "temperature_nan", [](Generate* r) { r->mutable_sampling()->set_temperature(kNan); }, "sampling.temperature",
          "[0, 100]", "nan"),
      Range(
          "temperature_inf", [](Generate* r) { r->mutable_sampling()->set_temperature(kInf); }, "sampling.temperature",
          "[0, 100]", "inf"),
      Range(
          "temperature_negative", [](Generate* r) { r->mutable_sampling()->set_temperature(-0.5); },
          "sampling.temperature", "[0, 100]", "-0.5"),
      Range(
          "temperature_huge", [](Generate* r) { r->mutable_sampling()->set_temperature(1e30); }, "sampling.temperature",
          "[0, 100]", "1e+30"),
      Range(
          "top_p_above", [](Generate* r) { r->mutable_sampling()->set_top_p(1.5); }, "sampling.top_p", "(0, 1]", "1.5"),
      Range(
          "top_p_nan", [](Generate* r) { r->mutable_sampling()->set_top_p(kNan); }, "sampling.top_p", "(0, 1]", "nan"),
      Range(
          "top_p_zero", [](Generate* r) { r->mutable_sampling()->set_top_p(0); }, "sampling.top_p", "(0, 1]", "0"),
      Range(
          "top_p_negative", [](Generate* r) { r->mutable_sampling()->set_top_p(-0.5); }, "sampling.top_p", "(0, 1]",
          "-0.5"),
      Range(
          "top_k", [](Generate* r) { r->mutable_sampling()->set_top_k(-2); }, "sampling.top_k", "[-1, 1e+09]", "-2"),
      Range(
          "min_p", [](Generate* r) { r->mutable_sampling()->set_min_p(-0.1); }, "sampling.min_p", "[0, 1]", "-0.1"),
      Range(
          "presence_inf", [](Generate* r) { r->mutable_sampling()->set_presence_penalty(kInf); },
          "sampling.presence_penalty", "[-2, 2]", "inf"),
      Range(
          "frequency", [](Generate* r) { r->mutable_sampling()->set_frequency_penalty(-2.5); },
          "sampling.frequency_penalty", "[-2, 2]", "-2.5"),
      Range(
          "presence_nan", [](Generate* r) { r->mutable_sampling()->set_presence_penalty(kNan); },
          "sampling.presence_penalty", "[-2, 2]", "nan"),
      Range(
          "repetition_inf", [](Generate* r) { r->mutable_sampling()->set_repetition_penalty(kInf); },
          "sampling.repetition_penalty", "(0, 10]", "inf"),
      Range(
          "repetition_zero", [](Generate* r) { r->mutable_sampling()->set_repetition_penalty(0); },
          "sampling.repetition_penalty", "(0, 10]", "0"),
      {"bias_inf", [](Generate* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = INFINITY; },
       "sampling.logit_bias: must be finite", bias, "finite", "inf"},
      {"bias_nan", [](Generate* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = NAN; },
       "sampling.logit_bias: must be finite", bias, "finite", "nan"},
      {"bias_token", [](Generate* r) { (*r->mutable_sampling()->mutable_logit_bias())[300] = 1; },
       "sampling.logit_bias: token 300 outside [0, 258)", bias, "258", "300"},
      {"bias_count",
       [](Generate* r) {
         for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
       },
       "sampling.logit_bias: 1025 entries, limit 1024", bias, "1024", "1025"},
  };
}

std::vector<BadRequest> CountCases() {
  return {
      Range(
          "n_zero", [](Generate* r) { r->set_n(0); }, "n", "[1, 64]", "0"),
      Range(
          "n_many", [](Generate* r) { r->set_n(16384); }, "n", "[1, 64]", "16384"),
      Range(
          "logprobs", [](Generate* r) { r->set_logprobs(21); }, "logprobs", "[0, 20]", "21"),
      Range(
          "prompt_logprobs", [](Generate* r) { r->set_prompt_logprobs(-1); }, "prompt_logprobs", "[0, 20]", "-1"),
      Range(
          "min_tokens", [](Generate* r) { r->set_max_tokens(5), r->set_min_tokens(6); }, "min_tokens", "[0, 5]", "6"),
      {"max_tokens_zero", [](Generate* r) { r->set_max_tokens(0); }, "max_tokens: must be at least 1, is 0",
       "max_tokens", "1", "0"},
      {"max_tokens_negative", [](Generate* r) { r->set_max_tokens(-7); }, "max_tokens: must be at least 1, is -7",
       "max_tokens", "1", "-7"},
      {"max_tokens_over", [](Generate* r) { r->set_max_tokens(98); }, "prompt 3 + max_tokens 98 > context 100",
       "max_tokens", "97", "98", "PROMPT_TOO_LONG"},
      {"max_tokens_2_31", [](Generate* r) { r->set_max_tokens(std::numeric_limits<int32_t>::max()); },
       "prompt 3 + max_tokens 2147483647 > context 100", "max_tokens", "97", "2147483647", "PROMPT_TOO_LONG"},
      {"prompt_over",
       [](Generate* r) {
         for (int i = 0; i < 97; ++i) r->mutable_token_ids()->add_ids(1);
       },
       "prompt: 100 tokens and at least one to generate exceed the context of 100", "prompt", "100", "100",
       "PROMPT_TOO_LONG"},
      {"request_id", [](Generate* r) { r->set_request_id(std::string(129, 'r')); }, "request_id: 129 bytes, limit 128",
       "request_id", "128", "129"},
      {"stops_many",
       [](Generate* r) {
         for (int i = 0; i < 65; ++i) r->add_stop("x");
       },
       "stop: 65 strings, limit 64", "stop", "64", "65"},
      {"stop_empty", [](Generate* r) { r->add_stop("x"), r->add_stop(""); },
       "stop[1]: must have 1 to 1024 bytes, has 0", "stop[1]", "1024", "0"},
      {"stop_long", [](Generate* r) { r->add_stop(std::string(1025, 's')); },
       "stop[0]: must have 1 to 1024 bytes, has 1025", "stop[0]", "1024", "1025"},
      {"stop_ids_many",
       [](Generate* r) {
         for (int i = 0; i < 1025; ++i) r->add_stop_token_ids(1);
       },
       "stop_token_ids: 1025 ids, limit 1024", "stop_token_ids", "1024", "1025"},
      {"stop_id", [](Generate* r) { r->add_stop_token_ids(-1); }, "stop_token_ids[0]: -1 outside [0, 258)",
       "stop_token_ids[0]", "[0, 258)", "-1"},
  };
}

std::vector<BadRequest> PromptCases() {
  return {
      {"no_prompt", [](Generate* r) { r->clear_prompt(); }, "prompt: exactly one of text, token_ids, messages required",
       "prompt", "1", "0"},
      {"no_ids", [](Generate* r) { r->mutable_token_ids()->clear_ids(); },
       "prompt: is empty: at least one token is needed", "prompt", "1", "0"},
      {"no_text", [](Generate* r) { r->set_text(""), r->set_add_special_tokens(false); },
       "prompt: is empty: at least one token is needed", "prompt", "1", "0"},
      {"id_at_vocab", [](Generate* r) { r->mutable_token_ids()->add_ids(300); }, "token_ids[3]: 300 outside [0, 258)",
       "token_ids[3]", "[0, 258)", "300"},
      {"id_negative", [](Generate* r) { r->mutable_token_ids()->set_ids(0, -1); }, "token_ids[0]: -1 outside [0, 258)",
       "token_ids[0]", "[0, 258)", "-1"},
      {"tokenizer_beyond_the_model", [](Generate* r) { r->set_text("a<|far|>"), r->set_allow_special(true); },
       "prompt[2]: 258 outside [0, 258)", "prompt[2]", "[0, 258)", "258"},
      {"text_bytes", [](Generate* r) { r->set_text(std::string(5001, 'a')); }, "text: 5001 bytes, limit 5000", "text",
       "5000", "5001"},
  };
}

std::vector<BadRequest> MessageCases() {
  return {
      {"no_messages", [](Generate* r) { r->mutable_messages(); }, "messages: is empty", "messages", "1", "0"},
      {"no_role", [](Generate* r) { r->mutable_messages()->add_messages()->set_content("x"); },
       "messages[0].role: is empty", "messages[0].role", "a role", ""},
      {"extra_not_json",
       [](Generate* r) {
         auto* m = r->mutable_messages()->add_messages();
         m->set_role("user"), m->set_extra_json("{oops");
       },
       "messages[0].extra_json: must be a JSON object, is \"{oops\"", "messages[0].extra_json", "a JSON object",
       "\"{oops\""},
      {"tool_not_object",
       [](Generate* r) {
         r->mutable_messages()->add_messages()->set_role("user");
         r->mutable_messages()->add_tools("{}"), r->mutable_messages()->add_tools("[1]");
       },
       "messages.tools[1]: must be a JSON object, is \"[1]\"", "messages.tools[1]", "a JSON object", "\"[1]\""},
      {"args_deep",
       [](Generate* r) {
         r->mutable_messages()->add_messages()->set_role("user");
         r->mutable_messages()->set_template_args_json(std::string(100000, '['));
       },
       "messages.template_args_json: nested 100000 deep, limit 64", "messages.template_args_json", "64", "100000"},
      {"args_many_keys",
       [](Generate* r) {
         r->mutable_messages()->add_messages()->set_role("user");
         std::string json = "{";
         for (int i = 0; i < 2049; ++i) absl::StrAppend(&json, i == 0 ? "" : ",", "\"k", i, "\":1");
         r->mutable_messages()->set_template_args_json(json + "}");
       },
       "messages.template_args_json: 2049 keys, limit 2048", "messages.template_args_json", "2048", "2049"},
      {"messages_many",
       [](Generate* r) {
         for (int i = 0; i < 4097; ++i) r->mutable_messages()->add_messages();
       },
       "messages: 4097 messages, limit 4096", "messages", "4096", "4097"},
      {"tools_many",
       [](Generate* r) {
         r->mutable_messages()->add_messages()->set_role("user");
         for (int i = 0; i < 600; ++i) r->mutable_messages()->add_tools("{}");
       },
       "messages.tools: 600 tools, limit 512", "messages.tools", "512", "600"},
      {"no_role_in_extra",
       [](Generate* r) { r->mutable_messages()->add_messages()->set_extra_json(R"({"content": "x"})"); },
       "messages[0].role: is empty", "messages[0].role", "a role", ""},
  };
}

class BadRequestTest : public testing::TestWithParam<BadRequest> {
 protected:
  static void SetUpTestSuite() { text_ = TinyText().release(); }
  static void TearDownTestSuite() { delete text_; }
  static const text::TextProcessor* text_;
};
const text::TextProcessor* BadRequestTest::text_ = nullptr;

TEST_P(BadRequestTest, IsRefused) {
  const BadRequest& bad = GetParam();
  const ServedModel model = TinyModel();
  ConvertArgs args;
  args.model = &model;
  args.text = text_;
  args.limits.max_prompt_bytes = 5000;
  Generate request;
  for (int id : {1, 2, 3}) request.mutable_token_ids()->add_ids(id);
  ASSERT_TRUE(ConvertGenerate(request, args).ok());
  bad.spoil(&request);
  const auto result = ConvertGenerate(request, args);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), bad.code);
  EXPECT_EQ(std::string(result.status().message()), bad.message);
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(result.status(), "r"));
  EXPECT_EQ(view.reason, bad.reason);
  EXPECT_EQ(view.details.metadata().at("field"), bad.field);
  EXPECT_EQ(view.details.metadata().at("limit"), bad.limit);
  EXPECT_EQ(view.details.metadata().at("actual"), bad.actual);
}

std::string NameOf(const testing::TestParamInfo<BadRequest>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Sampling, BadRequestTest, testing::ValuesIn(SamplingCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Counts, BadRequestTest, testing::ValuesIn(CountCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Prompts, BadRequestTest, testing::ValuesIn(PromptCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(Messages, BadRequestTest, testing::ValuesIn(MessageCases()), NameOf);

}  // namespace
}  // namespace switchyard::server
