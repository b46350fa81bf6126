// Good requests: where unset fields come from, what a prompt becomes, and what the model lacks.
#include "server/api/convert.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/api/model_names.h"
#include "tests/server/api/convert_fixture.h"

namespace switchyard::server {
namespace {

TEST_F(ConvertTest, UnsetFieldsAreOurDefaults) {
  const auto out = Convert();
  EXPECT_EQ(out->request_id, "drawn");
  EXPECT_EQ(out->prompt, (Ids{kBos, 'a', 'b'}));
  EXPECT_EQ(out->sampling.temperature, 1.0);
  EXPECT_EQ(out->sampling.top_p, 1.0);
  EXPECT_EQ(out->sampling.top_k, 0);
  EXPECT_EQ(out->sampling.min_p, 0.0);
  EXPECT_EQ(out->sampling.repetition_penalty, 1.0);
  EXPECT_EQ(out->sampling.seed, 77u);
  EXPECT_EQ(out->sampling.stop_ids, Ids{kEnd});
  EXPECT_EQ(out->sampling.num_logprobs, -1);
  EXPECT_EQ(out->sampling.num_prompt_logprobs, -1);
  EXPECT_EQ(out->sampling.expert_paths_from, -1);
  EXPECT_EQ(out->num_choices, 1);
  EXPECT_EQ(out->max_tokens, 97) << "what the context leaves";
  EXPECT_EQ(out->arrival, args_.now);
  EXPECT_EQ(out->deadline, args_.deadline);
  EXPECT_TRUE(out->skip_special_tokens);
  EXPECT_TRUE(out->has_text);
}

TEST_F(ConvertTest, ExpertPathsAreThoseOfTheModelsLayers) {
  request_.set_return_expert_paths(true);
  const rpc::ErrorView refused = Refusal(absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.reason, "BAD_FIELD");
  EXPECT_EQ(refused.details.metadata().at("field"), "return_expert_paths");
  ServedModel model = TinyModel();
  model.num_moe_layers = 5;
  model.experts_per_token = 2;
  args_.model = &model;
  const auto out = Convert();
  EXPECT_EQ(out->sampling.expert_paths_from, 0);
  EXPECT_EQ(out->num_moe_layers, 5);
  EXPECT_EQ(out->top_k, 2);
  OutputChunk chunk;
  chunk.expert_paths = {.first_position = 3, .num_moe_layers = 1, .top_k = 2, .experts = {258, -1}};
  const v1::GenerateResponse message = ToProto(chunk, *text_);
  EXPECT_EQ(message.expert_paths().first_position(), 3);
  EXPECT_EQ(message.expert_paths().num_moe_layers(), 1);
  EXPECT_EQ(message.expert_paths().top_k(), 2);
  EXPECT_EQ(message.expert_paths().experts(), "\x02\x01\xff\xff");
  chunk.expert_paths = {};
  EXPECT_FALSE(ToProto(chunk, *text_).has_expert_paths());
}

TEST_F(ConvertTest, TheModelsDefaultsComeFirst) {
  TinyTextOptions options;
  options.generation_config =
      R"({"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1,)"
      R"( "max_new_tokens": 7})";
  Use(options);
  auto out = Convert();
  EXPECT_EQ(out->sampling.temperature, 0.6);
  EXPECT_EQ(out->sampling.top_p, 0.9);
  EXPECT_EQ(out->sampling.top_k, 20);
  EXPECT_EQ(out->sampling.min_p, 0.05);
  EXPECT_EQ(out->sampling.repetition_penalty, 1.1);
  EXPECT_EQ(out->max_tokens, 7);
  request_.mutable_sampling()->set_temperature(0);
  request_.mutable_sampling()->set_top_k(-1);
  request_.set_max_tokens(97);
  out = Convert();
  EXPECT_EQ(out->sampling.temperature, 0.0) << "an explicit zero is a value";
  EXPECT_EQ(out->sampling.top_k, 0);
  EXPECT_EQ(out->max_tokens, 97);
}

TEST_F(ConvertTest, AModelsLongDefaultIsCutToTheContext) {
  TinyTextOptions options;
  options.generation_config = R"({"max_new_tokens": 4000})";
  Use(options);
  EXPECT_EQ(Convert()->max_tokens, 97);
}

TEST_F(ConvertTest, TheModelsShortestLengthAndStopStringsComeFirst) {
  TinyTextOptions options;
  options.generation_config = R"({"min_new_tokens": 5, "stop_strings": ["###", "\n\n"]})";
  Use(options);
  auto out = Convert();
  EXPECT_EQ(out->sampling.min_tokens, 5);
  EXPECT_EQ(out->stop, (std::vector<std::string>{"###", "\n\n"}));
  request_.set_max_tokens(3);
  EXPECT_EQ(Convert()->sampling.min_tokens, 3) << "cut to what the request allows";
  request_.set_min_tokens(0);
  request_.add_stop("END");
  out = Convert();
  EXPECT_EQ(out->sampling.min_tokens, 0);
  EXPECT_EQ(out->stop, std::vector<std::string>{"END"});
  options.generation_config = R"({"stop_strings": "one"})";
  Use(options);
  request_.clear_stop();
  EXPECT_EQ(Convert()->stop, std::vector<std::string>{"one"});
  options.tokenizer = false;
  Use(options);
  request_.mutable_token_ids()->add_ids(1);
  EXPECT_TRUE(Convert()->stop.empty()) << "nothing to find them with";
}

TEST_F(ConvertTest, EverySeedIsLegal) {
  for (uint64_t seed : {uint64_t{0}, ~uint64_t{0}}) {
    request_.mutable_sampling()->set_seed(seed);
    EXPECT_EQ(Convert()->sampling.seed, seed);
  }
}

TEST_F(ConvertTest, StopIdsJoinTheModelsOwnUnlessIgnored) {
  request_.add_stop_token_ids(9);
  request_.add_stop_token_ids(kEnd);
  request_.add_stop_token_ids(9);
  EXPECT_EQ(Convert()->sampling.stop_ids, (Ids{9, kEnd}));
  request_.clear_stop_token_ids();
  request_.add_stop_token_ids(9);
  request_.set_ignore_eos(true);
  EXPECT_EQ(Convert()->sampling.stop_ids, Ids{9});
}

TEST_F(ConvertTest, SpecialTokensInTextArePlainUnlessAllowed) {
  request_.set_text("<|end|>");
  request_.set_add_special_tokens(false);
  EXPECT_EQ(Convert()->prompt, (Ids{'<', '|', 'e', 'n', 'd', '|', '>'}));
  request_.set_allow_special(true);
  EXPECT_EQ(Convert()->prompt, Ids{kEnd});
}

// Vocabularies are padded: an id without a token is still a row of the model.
TEST_F(ConvertTest, ReservedIdsOfThePaddingAreLegalAndHaveNoText) {
  ServedModel padded = model_;
  padded.vocab_size = 300;
  args_.model = &padded;
  request_.mutable_token_ids()->add_ids(280);
  EXPECT_EQ(Convert()->prompt, Ids{280});
  v1::DetokenizeRequest detokenize;
  detokenize.add_token_ids('a');
  detokenize.add_token_ids(280);
  EXPECT_EQ(ConvertDetokenize(detokenize, args_)->text(), "a");
  detokenize.add_token_ids(300);
  EXPECT_EQ(std::string(ConvertDetokenize(detokenize, args_).status().message()), "token_ids[2]: 300 outside [0, 300)");
}

// A model with adapters has a name for each; any other is refused with those that there are.
TEST_F(ConvertTest, AModelsAdaptersAreAskedForByName) {
  ServedModel model = model_;
  model.adapters = {"first", "second"};
  args_.model = &model;
  for (const auto& [name, adapter] :
       {std::pair("", 0), std::pair("tiny", 0), std::pair("tiny:first", 1), std::pair("tiny:second", 2)}) {
    request_.set_model(name);
    EXPECT_EQ(Convert()->adapter, adapter) << name;
    if (adapter > 0) EXPECT_EQ(ModelName(model, adapter), name);
  }
  const auto refusal = [&](const std::string& name) {
    request_.set_model(name);
    EXPECT_EQ(Refusal(absl::StatusCode::kNotFound).reason, "MODEL_NOT_FOUND") << name;
    return std::string(ConvertGenerate(request_, args_).status().message());
  };
  for (const char* const name : {"first", "tiny:", "tiny:third", "tiny:first ", ":first", "tiny:first:second"}) {
    EXPECT_THAT(refusal(name), testing::HasSubstr("this server has \"tiny\", \"tiny:first\", \"tiny:second\"")) << name;
  }
  for (int i = 0; i < 20; ++i) model.adapters.push_back(absl::StrCat("more", i));
  EXPECT_THAT(refusal("big"), testing::AllOf(testing::HasSubstr("\"tiny:more13\" and 6 more"),
                                             testing::Not(testing::HasSubstr("more14"))));
}

TEST_F(ConvertTest, AnotherModelIsNotFound) {
  request_.set_model("tiny");
  (void)Convert();
  request_.set_model("big\n" + std::string(100, 'x'));
  const rpc::ErrorView view = Refusal(absl::StatusCode::kNotFound);
  EXPECT_EQ(view.reason, "MODEL_NOT_FOUND");
  const std::string message(ConvertGenerate(request_, args_).status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << "escaped";
  EXPECT_NE(message.find("this server has \"tiny\""), std::string::npos);
}

TEST_F(ConvertTest, WithoutATokenizerTokenIdsServe) {
  TinyTextOptions options;
  options.tokenizer = false;
  options.chat_template = "";
  Use(options);
  EXPECT_EQ(Refusal(absl::StatusCode::kFailedPrecondition).reason, "NO_TOKENIZER");
  request_.mutable_messages()->add_messages()->set_role("user");
  EXPECT_EQ(Refusal(absl::StatusCode::kFailedPrecondition).reason, "NO_CHAT_TEMPLATE");
  request_.mutable_token_ids()->add_ids(5);
  EXPECT_FALSE(Convert()->has_text);
  request_.add_stop("x");
  EXPECT_EQ(Refusal(absl::StatusCode::kFailedPrecondition).reason, "NO_TOKENIZER");
}

TEST_F(ConvertTest, CancelledClientsAreNotTokenizedFor) {
  args_.cancelled = [] { return true; };
  request_.set_text(std::string(50000, 'a'));
  EXPECT_EQ(ConvertGenerate(request_, args_).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace switchyard::server
