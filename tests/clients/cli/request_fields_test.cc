#include "clients/cli/request_fields.h"

#include <set>

#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::GenerateRequest Generate(const char* json) {
  auto request = BuildRequest<v1::GenerateRequest>(*ParseJson(json));
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? *request : v1::GenerateRequest();
}
template <class Request = v1::GenerateRequest>
std::string Error(const char* json) {
  return std::string(BuildRequest<Request>(*ParseJson(json)).status().message());
}

TEST(RequestFieldsTest, EveryFieldOfTheSamplingMessageHasARow) {
  std::set<std::string> rows;
  for (const auto& field : RequestFields<v1::GenerateRequest>()) rows.insert(field.name);
  const auto* sampling = v1::SamplingParameters::descriptor();
  for (int i = 0; i < sampling->field_count(); ++i)
    EXPECT_TRUE(rows.count(sampling->field(i)->name())) << sampling->field(i)->name();
  const auto* constraint = v1::Constraint::descriptor();
  for (int i = 0; i < constraint->field_count(); ++i)
    EXPECT_TRUE(rows.count(constraint->field(i)->name())) << constraint->field(i)->name();
  const auto* request = v1::GenerateRequest::descriptor();
  for (int i = 0; i < request->field_count(); ++i) {
    const std::string name = request->field(i)->name();
    EXPECT_TRUE(name == "sampling" || name == "constraint" || rows.count(name)) << name;
  }
}

TEST(RequestFieldsTest, GenerateFromTokenIds) {
  const v1::GenerateRequest request = Generate(
      R"({"token_ids": [5, 9], "temperature": 0, "max_tokens": 64, "ignore_eos": true, "prompt_logprobs": 1})");
  EXPECT_THAT(request.token_ids().ids(), ElementsAre(5, 9));
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_EQ(request.sampling().temperature(), 0);
  EXPECT_EQ(request.max_tokens(), 64);
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_EQ(request.prompt_logprobs(), 1);
  EXPECT_FALSE(request.has_n());
  EXPECT_FALSE(request.sampling().has_seed());
}

TEST(RequestFieldsTest, GenerateWithEverySamplingField) {
  const v1::GenerateRequest request = Generate(
      R"({"text": "x", "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
          "logit_bias": {"17": -5.5}, "seed": 18446744073709551615, "stop": ["a", "b"], "stop_token_ids": [7], "min_tokens": 2, "n": 3,
          "logprobs": 4,
          "allow_special": true, "add_special_tokens": false, "skip_special_tokens": false, "request_id": "r", "model": "m"})");
  EXPECT_EQ(request.sampling().top_k(), 3);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(request.sampling().logit_bias().at(17), -5.5f);
  EXPECT_THAT(request.stop(), ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_token_ids(), ElementsAre(7));
  EXPECT_FALSE(request.add_special_tokens());
  EXPECT_TRUE(request.has_add_special_tokens());
}

TEST(RequestFieldsTest, MessagesKeepFurtherKeysAndTheirOrder) {
  const v1::GenerateRequest request = Generate(
      R"({"messages": [{"role": "user", "content": "Hi", "name": "Ann", "age": 3}, {"role": "assistant", "content": null, "tool_calls": []}],
          "tools": [{"type": "function", "a": 1}], "add_generation_prompt": false, "template_args": {"enable_thinking": false}})");
  const v1::Messages& messages = request.messages();
  ASSERT_EQ(messages.messages_size(), 2);
  EXPECT_EQ(messages.messages(0).content(), "Hi");
  EXPECT_EQ(messages.messages(0).extra_json(), R"({"name":"Ann","age":3})");
  EXPECT_EQ(messages.messages(1).content(), "");
  EXPECT_EQ(messages.messages(1).extra_json(), R"({"content":null,"tool_calls":[]})");
  EXPECT_THAT(messages.tools(), ElementsAre(R"({"type":"function","a":1})"));
  EXPECT_FALSE(messages.add_generation_prompt());
  EXPECT_EQ(messages.template_args_json(), R"({"enable_thinking":false})");
}

TEST(RequestFieldsTest, ErrorsNameTheField) {
  EXPECT_THAT(Error(R"({"text": "x", "temprature": 1})"),
              HasSubstr("unknown field \"temprature\"; did you mean \"temperature\"?"));
  EXPECT_THAT(Error(R"({"text": "x", "max_tokens": "many"})"), HasSubstr("max_tokens must be an integer, is \"many\""));
  EXPECT_THAT(Error(R"({"token_ids": [1, 5000000000]})"), HasSubstr("token_ids item 1 must be an integer of 32 bits"));
  EXPECT_THAT(Error(R"({})"), HasSubstr("exactly one of text, token_ids, messages is needed, 0 given"));
  EXPECT_THAT(Error(R"({"text": "x", "token_ids": [1]})"), HasSubstr("2 given"));
  EXPECT_THAT(Error(R"({"text": "x", "tools": []})"), HasSubstr("tools goes with messages only"));
  EXPECT_THAT(Error(R"({"messages": [{"content": "x"}]})"), HasSubstr("messages item 0 has no role"));
  EXPECT_THAT(Error(R"({"text": "x", "logit_bias": {"a": 1}})"), HasSubstr("no token id"));
  EXPECT_THAT(Error(R"({"text": "x", "enable_thinking": false})"),
              HasSubstr("arguments of the chat template go into template_args"));
  EXPECT_THAT(Error(R"([1])"), HasSubstr("must be a JSON object"));
}

TEST(RequestFieldsTest, TokenizeAndDetokenize) {
  const auto tokenize = BuildRequest<v1::TokenizeRequest>(*ParseJson(R"({"text": "x", "add_special_tokens": true})"));
  ASSERT_TRUE(tokenize.ok()) << tokenize.status();
  EXPECT_TRUE(tokenize->add_special_tokens());
  const auto detokenize =
      BuildRequest<v1::DetokenizeRequest>(*ParseJson(R"({"token_ids": [1, 2], "skip_special_tokens": true})"));
  ASSERT_TRUE(detokenize.ok()) << detokenize.status();
  EXPECT_THAT(detokenize->token_ids(), ElementsAre(1, 2));
  EXPECT_THAT(Error<v1::DetokenizeRequest>(R"({"token_id": [1]})"), HasSubstr("did you mean \"token_ids\"?"));
}

TEST(RequestFieldsTest, BadJsonSaysWhere) {
  EXPECT_THAT(std::string(ParseJson("{\"a\": }").status().message()), HasSubstr("column 7"));
}

}  // namespace
}  // namespace switchyard::cli
