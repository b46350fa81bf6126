// Good requests: where unset fields come from, what a prompt becomes, and what the model lacks.
#include "server/api/convert.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

class ConvertTest : public testing::Test {
 protected:
  void Use(const TinyTextOptions& options) {
    text_ = TinyText(options);
    args_.text = text_.get();
  }
  void SetUp() override {
    Use({});
    args_.model = &model_;
    args_.drawn_seed = 77;
    args_.drawn_id = "drawn";
    args_.now = absl::UnixEpoch() + absl::Seconds(5);
    args_.deadline = args_.now + absl::Seconds(60);
    request_.set_text("ab");
  }
  std::unique_ptr<InferenceRequest> Convert() {
    auto result = ConvertGenerate(request_, args_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : std::make_unique<InferenceRequest>();
  }
  rpc::ErrorView Refusal(absl::StatusCode code) {
    const auto result = ConvertGenerate(request_, args_);
    EXPECT_EQ(result.status().code(), code) << result.status();
    return rpc::ViewError(rpc::ToGrpcStatus(result.status(), ""));
  }

  const ServedModel model_ = TinyModel();
  std::unique_ptr<const text::TextProcessor> text_;
  ConvertArgs args_;
  v1::GenerateRequest request_;
};

using Ids = std::vector<int32_t>;

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

TEST_F(ConvertTest, MessagesAreRenderedWithTheirSpecialTokens) {
  auto* messages = request_.mutable_messages();
  auto* message = messages->add_messages();
  message->set_role("u");
  message->set_content("x");
  EXPECT_EQ(Convert()->prompt, (Ids{'u', ':', 'x', kEnd, 'A', ':'}));
  messages->set_add_generation_prompt(false);
  EXPECT_EQ(Convert()->prompt, (Ids{'u', ':', 'x', kEnd}));
}

// The template is a stranger's code: a call ends when its time is over, not when the template is done.
TEST_F(ConvertTest, RenderingEndsAtTheDeadlineAndWhenTheClientLeaves) {
  TinyTextOptions options;
  options.chat_template = "{% for a in range(1000) %}{% for b in range(100) %}{% endfor %}{% endfor %}x";
  Use(options);
  request_.mutable_messages()->add_messages()->set_role("u");
  absl::Time now = args_.now;
  args_.clock = [&now] { return now += absl::Seconds(1); };  // one second for each look at it
  const rpc::ErrorView late = Refusal(absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.reason, "DEADLINE");
  const absl::Status status = ConvertGenerate(request_, args_).status();
  EXPECT_EQ(status.message(),
            "messages: chat template: still rendering at the call's deadline, 1m after it was begun; send shorter "
            "messages, allow more time, or ask the operator to look at the template (line 1)");
  now = args_.now;
  args_.deadline = absl::InfiniteFuture();
  bool cancelled = false;
  args_.clock = [&] { return cancelled = true, now; };  // the client leaves while it is rendered
  args_.cancelled = [&cancelled] { return cancelled; };
  EXPECT_EQ(ConvertGenerate(request_, args_).status().code(), absl::StatusCode::kCancelled);
  args_.cancelled = nullptr;
  EXPECT_EQ(Convert()->prompt, Ids{'x'});
}

TEST_F(ConvertTest, TemplatesSeeToolsExtrasAndArguments) {
  TinyTextOptions options;
  options.chat_template = "{{ messages[0].name }}{{ tools[0].t }}{% if think %}T{% endif %}";
  Use(options);
  auto* messages = request_.mutable_messages();
  messages->add_messages()->set_role("user");
  messages->mutable_messages(0)->set_extra_json(R"({"name": "N"})");
  messages->add_tools(R"({"t": "F"})");
  messages->set_template_args_json(R"({"think": true})");
  EXPECT_EQ(Convert()->prompt, (Ids{'N', 'F', 'T'}));
}

TEST_F(ConvertTest, TemplatesSeeMessagesAsTheyWereSent) {
  TinyTextOptions options;
  options.chat_template = "{% for m in messages %}{{ m.content is defined }}{{ m | tojson }}{% endfor %}{{ tools }}";
  Use(options);
  request_.set_add_special_tokens(false);
  const auto rendered = [&] {
    const auto out = Convert();
    return out == nullptr ? "" : std::string(out->prompt.begin(), out->prompt.end());
  };
  auto* messages = request_.mutable_messages();
  auto* message = messages->add_messages();
  message->set_role("u");
  EXPECT_EQ(rendered(), R"(False{"role": "u"}None)");
  message->set_content("");
  EXPECT_EQ(rendered(), R"(True{"role": "u", "content": ""}None)");
  message->set_extra_json(R"({"content": null, "name": null})");
  EXPECT_EQ(rendered(), R"(False{"role": "u"}None)") << "HuggingFace leaves out what is null";
  message->Clear();
  message->set_extra_json(R"({"x": 1, "content": "c", "role": "u"})");
  EXPECT_EQ(rendered(), R"(True{"x": 1, "content": "c", "role": "u"}None)");
  messages->set_template_args_json(R"({"tools": []})");
  EXPECT_EQ(rendered(), R"(True{"x": 1, "content": "c", "role": "u"}[])");
}

TEST_F(ConvertTest, WhatTheTemplateRefusesIsABadField) {
  TinyTextOptions options;
  options.chat_template = "{{ raise_exception('roles must alternate') }}";
  Use(options);
  request_.mutable_messages()->add_messages()->set_role("user");
  const auto result = ConvertGenerate(request_, args_);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(result.status().message()).find("roles must alternate"), std::string::npos);
  EXPECT_EQ(Refusal(absl::StatusCode::kInvalidArgument).reason, "BAD_FIELD");
}

// A template or a regex of the model's files that takes too much work is no fault of the request's form.
TEST_F(ConvertTest, BoundsOfTemplateAndTokenizerAreExhausted) {
  TinyTextOptions options;
  options.chat_template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  nlohmann::json tokenizer = nlohmann::json::parse(TinyTokenizerJson());
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers",
                                 {{{"type", "Split"}, {"pattern", {{"Regex", "(x+x+)+y"}}}, {"behavior", "Isolated"}},
                                  tokenizer["pre_tokenizer"]}}};
  options.tokenizer_json = tokenizer.dump();
  Use(options);
  request_.set_text(std::string(60, 'x') + "zy");
  EXPECT_EQ(Refusal(absl::StatusCode::kResourceExhausted).reason, "TEXT_LIMIT");
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request_.text());
  const absl::Status of_text = ConvertTokenize(tokenize, args_).status();
  EXPECT_EQ(of_text.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(of_text.message()).rfind("text: ", 0), 0u) << of_text;
  request_.mutable_messages()->add_messages()->set_role("user");
  EXPECT_EQ(Refusal(absl::StatusCode::kResourceExhausted).details.metadata().at("field"), "messages");
  const std::string message(ConvertGenerate(request_, args_).status().message());
  EXPECT_EQ(message.rfind("messages: chat template: ", 0), 0u) << message;
  EXPECT_NE(message.find(" more than "), std::string::npos) << message;
}

// Vocabularies are padded: an id that no token has is a row of the model all the same.
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

// gRPC's clients take 4 MiB unless they are told otherwise.
TEST_F(ConvertTest, AnAnswerOfTokenizeIsNoLongerThanClientsTake) {
  v1::TokenizeRequest request;
  for (int i = 0; i < 300'000; ++i) request.mutable_text()->append("a b ");
  const absl::Status status = ConvertTokenize(request, args_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(status, ""));
  EXPECT_EQ(view.reason, "TEXT_LIMIT");
  EXPECT_EQ(view.details.metadata().at("field"), "text");
  EXPECT_EQ(view.details.metadata().at("limit"), "4194304");
  EXPECT_EQ(view.details.metadata().at("actual").size(), 7u) << status;
  request.mutable_text()->resize(request.text().size() / 2);
  EXPECT_TRUE(ConvertTokenize(request, args_).ok());
}

TEST_F(ConvertTest, TokenizeReportsIdsSpellingsAndRenderedText) {
  v1::TokenizeRequest request;
  request.set_text("a<|end|>");
  request.set_add_special_tokens(false);
  request.set_allow_special(true);
  auto response = ConvertTokenize(request, args_);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->token_ids_size(), 2);
  EXPECT_EQ(response->token_ids(1), kEnd);
  EXPECT_EQ(response->tokens(0), "a");
  EXPECT_EQ(response->tokens(1), "<|end|>");
  request.mutable_messages()->add_messages()->set_role("u");
  request.clear_add_special_tokens();
  request.clear_allow_special();
  response = ConvertTokenize(request, args_);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->rendered_text(), "u:<|end|>A:");
  EXPECT_EQ(response->token_ids_size(), 5);
  EXPECT_EQ(ConvertTokenize(v1::TokenizeRequest(), args_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConvertTest, DetokenizeSkipsSpecialTokensUnlessAsked) {
  v1::DetokenizeRequest request;
  for (int32_t id : {kBos, int32_t{'h'}, int32_t{'i'}}) request.add_token_ids(id);
  EXPECT_EQ(ConvertDetokenize(request, args_)->text(), "hi");
  request.set_skip_special_tokens(false);
  EXPECT_EQ(ConvertDetokenize(request, args_)->text(), "<|bos|>hi");
  request.add_token_ids(300);
  EXPECT_EQ(std::string(ConvertDetokenize(request, args_).status().message()), "token_ids[3]: 300 outside [0, 258)");
}

TEST_F(ConvertTest, AFinishedChunkCarriesReasonUsageAndTimings) {
  OutputChunk chunk;
  chunk.choice = 1;
  chunk.index = 4;
  chunk.tokens = {'a', kEnd};
  chunk.text = "a";
  chunk.logprobs.resize(2);
  chunk.logprobs[0].chosen = {'a', -0.5f, 2};
  chunk.logprobs[0].top = {{'b', -0.25f, 1}};
  chunk.finished = true;
  chunk.reason = batching::FinishReason::kStop;
  chunk.stop_token = kEnd;
  chunk.usage.prompt_tokens = 3;
  chunk.usage.completion_tokens = 6;
  chunk.usage.cached_tokens = 2;
  chunk.timings.queued = args_.now;
  chunk.timings.last_scheduled = args_.now + absl::Seconds(1);
  chunk.timings.first_token = args_.now + absl::Seconds(3);
  chunk.timings.last_token = args_.now + absl::Seconds(6);
  const v1::GenerateResponse message = ToProto(chunk, *text_);
  EXPECT_EQ(message.choice(), 1);
  EXPECT_EQ(message.index(), 4);
  EXPECT_EQ(message.token_ids_size(), 2);
  EXPECT_EQ(message.logprobs(0).chosen().text(), "a");
  EXPECT_EQ(message.logprobs(0).chosen().rank(), 2);
  EXPECT_EQ(message.logprobs(0).top(0).token_id(), 'b');
  EXPECT_EQ(message.finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(message.finish().stop_token_id(), kEnd);
  EXPECT_FALSE(message.finish().has_stop_string());
  EXPECT_EQ(message.finish().usage().cached_tokens(), 2);
  EXPECT_EQ(message.finish().timings().queue_seconds(), 1);
  EXPECT_EQ(message.finish().timings().prefill_seconds(), 2);
  EXPECT_EQ(message.finish().timings().decode_seconds(), 3);
}

// Of each token what it adds to a text, not how the vocabulary spells it ("Ġ"), and the bytes behind it.
TEST_F(ConvertTest, LogprobsHaveDecodedTextAndItsBytes) {
  OutputChunk chunk;
  chunk.logprobs.resize(3);
  chunk.logprobs[0].chosen = {' ', -0.5f, 1};
  chunk.logprobs[1].chosen = {0xC3, -0.5f, 1};  // the first byte of two
  chunk.logprobs[2].chosen = {kEnd, -0.5f, 2};
  chunk.logprobs[2].top = {{'\n', -0.25f, 1}};
  const v1::GenerateResponse message = ToProto(chunk, *text_);
  EXPECT_EQ(message.logprobs(0).chosen().text(), " ");
  EXPECT_EQ(message.logprobs(1).chosen().text(), "\xEF\xBF\xBD");
  EXPECT_EQ(message.logprobs(2).chosen().text(), "<|end|>");
  EXPECT_EQ(message.logprobs(2).top(0).text(), "\n");
  EXPECT_EQ(message.logprobs(0).chosen().bytes(), " ");
  EXPECT_EQ(message.logprobs(1).chosen().bytes(), "\xC3");
  EXPECT_EQ(message.logprobs(2).chosen().bytes(), "<|end|>");
  EXPECT_EQ(message.logprobs(2).top(0).bytes(), "\n");
}

// OpenAI's content parts, with a template that knows content as text only.
TEST_F(ConvertTest, ContentPartsAreJoinedForATemplateOfStrings) {
  v1::ChatMessage* message = request_.mutable_messages()->add_messages();
  message->set_role("u");
  message->set_extra_json(R"({"content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]})");
  const auto result = Convert();
  EXPECT_EQ(*text_->Decode(result->prompt, true), "u:h\niA:");
  message->set_extra_json(R"({"content": [{"type": "text", "text": "h"}, {"type": "image_url", "image_url": {}}]})");
  EXPECT_EQ(Refusal(absl::StatusCode::kInvalidArgument).reason, "BAD_FIELD");
  EXPECT_EQ(std::string(ConvertGenerate(request_, args_).status().message()),
            "messages: content[1] of message 0 has type \"image_url\": this model's chat template takes text only");
}

}  // namespace
}  // namespace switchyard::server
