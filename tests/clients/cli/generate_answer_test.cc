#include "clients/cli/generate_answer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

using testing::HasSubstr;

v1::GenerateResponse Part(int choice, int index, const std::string& text, bool last) {
  v1::GenerateResponse message;
  message.set_choice(choice);
  message.set_index(index);
  message.add_token_ids(index + 10);
  message.set_text(text);
  if (last) message.mutable_finish()->set_reason(v1::FINISH_REASON_STOP);
  if (last) message.mutable_finish()->set_stop_string("END");
  return message;
}

TEST(GenerateAnswerTest, OneChoice) {
  GenerateAnswer answer(1);
  v1::GenerateResponse first = Part(0, 0, "a", false);
  first.set_request_id("r");
  first.set_seed(9);
  first.add_logprobs()->mutable_chosen()->set_logprob(-0.5f);
  first.mutable_logprobs(0)->add_top()->set_token_id(3);
  first.add_prompt_logprobs()->mutable_chosen()->set_token_id(4);
  ASSERT_TRUE(answer.Add(first).ok());
  EXPECT_FALSE(answer.CheckComplete().ok());
  ASSERT_TRUE(answer.Add(Part(0, 1, "b", true)).ok());
  EXPECT_TRUE(answer.CheckComplete().ok());
  const Json json = answer.ToJson();
  EXPECT_EQ(json["text"], "ab");
  EXPECT_EQ(json["token_ids"], Json({10, 11}));
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["stop_string"], "END");
  EXPECT_EQ(json["logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(json["logprobs"][0]["top"][0]["token_id"], 3);
  EXPECT_EQ(json["prompt_logprobs"][0]["token_id"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(json.contains("timings"));
  EXPECT_EQ(json["seed"], 9);
  EXPECT_FALSE(json.contains("expert_paths"));
}

TEST(GenerateAnswerTest, ExpertPathsAreRowsOfLayersOfExperts) {
  GenerateAnswer answer(1);
  v1::GenerateResponse first = Part(0, 0, "a", false), second = Part(0, 1, "b", true);
  v1::ExpertPaths* paths = first.mutable_expert_paths();
  paths->set_num_moe_layers(2);
  paths->set_top_k(1);
  paths->set_experts(std::string("\x03\x00\x04\x01\x05\x00\xff\xff", 8));
  ASSERT_TRUE(answer.Add(first).ok());
  *second.mutable_expert_paths() = *paths;
  second.mutable_expert_paths()->set_experts(std::string(4, '\0'));
  const auto fault = [&] { return std::string(answer.Add(second).message()); };
  EXPECT_THAT(fault(), HasSubstr("expert paths of position 0 in rows of 4 bytes came, 2 in rows of 4 is next"));
  second.mutable_expert_paths()->set_first_position(2);
  second.mutable_expert_paths()->set_experts("abc");
  EXPECT_THAT(fault(), HasSubstr("choice 0: 3 bytes of expert paths, in rows of 4"));
  second.mutable_expert_paths()->set_top_k(0);
  EXPECT_THAT(fault(), HasSubstr("in rows of 0"));
  second.mutable_expert_paths()->set_top_k(2);
  second.mutable_expert_paths()->set_experts(std::string(8, '\0'));
  EXPECT_THAT(fault(), HasSubstr("rows of 8 bytes came"));
  second.mutable_expert_paths()->set_top_k(1);
  second.mutable_expert_paths()->set_experts(std::string(4, '\0'));
  ASSERT_TRUE(answer.Add(second).ok());
  EXPECT_EQ(Dump(answer.ToJson()["expert_paths"]), "[[[3],[260]],[[5],[-1]],[[0],[0]]]");
}

TEST(GenerateAnswerTest, Choices) {
  GenerateAnswer answer(2);
  ASSERT_TRUE(answer.Add(Part(1, 0, "y", true)).ok());
  ASSERT_TRUE(answer.Add(Part(0, 0, "x", true)).ok());
  const Json json = answer.ToJson();
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["choices"][0]["text"], "x");
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(AnswerText(json, true), "[0] x\n[1] y");
  EXPECT_EQ(AnswerText(json, false), "[0] 10\n[1] 10");
}

TEST(GenerateAnswerTest, GapsAndRepeatsAreFaults) {
  GenerateAnswer answer(1);
  ASSERT_TRUE(answer.Add(Part(0, 0, "a", false)).ok());
  EXPECT_THAT(std::string(answer.Add(Part(0, 2, "c", false)).message()), HasSubstr("token 2 came, 1 is next"));
  EXPECT_THAT(std::string(answer.Add(Part(0, 0, "a", false)).message()), HasSubstr("token 0 came, 1 is next"));
  EXPECT_THAT(std::string(answer.Add(Part(3, 0, "a", false)).message()), HasSubstr("choice 3 of 1"));
  ASSERT_TRUE(answer.Add(Part(0, 1, "b", true)).ok());
  EXPECT_THAT(std::string(answer.Add(Part(0, 2, "c", false)).message()), HasSubstr("after its end"));
}

TEST(GenerateAnswerTest, TheIdsAreShownWhereTheModelHasNoTextNotWhereItIsEmpty) {
  const Json answer = {{"text", ""}, {"token_ids", {4, 5}}};
  EXPECT_EQ(AnswerText(answer, false), "4 5");
  EXPECT_EQ(AnswerText(answer, true), "");
}

}  // namespace
}  // namespace switchyard::cli
