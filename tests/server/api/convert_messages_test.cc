// Conversations as prompts: what a chat template sees, what it may refuse, and when its rendering ends.
#include <string>

#include "nlohmann/json.hpp"
#include "tests/server/api/convert_fixture.h"

namespace switchyard::server {
namespace {

TEST_F(ConvertTest, MessagesAreRenderedWithTheirSpecialTokens) {
  auto* messages = request_.mutable_messages();
  auto* message = messages->add_messages();
  message->set_role("u");
  message->set_content("x");
  EXPECT_EQ(Convert()->prompt, (Ids{'u', ':', 'x', kEnd, 'A', ':'}));
  messages->set_add_generation_prompt(false);
  EXPECT_EQ(Convert()->prompt, (Ids{'u', ':', 'x', kEnd}));
}

// A template is untrusted code: the call ends at its deadline, not when the template is done.
TEST_F(ConvertTest, RenderingEndsAtTheDeadlineAndWhenTheClientLeaves) {
  TinyTextOptions options;
  options.chat_template = "{% for a in range(1000) %}{% for b in range(100) %}{% endfor %}{% endfor %}x";
  Use(options);
  request_.mutable_messages()->add_messages()->set_role("u");
  absl::Time now = args_.now;
  args_.clock = [&now] { return now += absl::Seconds(1); };  // one second passes at each call
  const rpc::ErrorView late = Refusal(absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.reason, "DEADLINE");
  const absl::Status status = ConvertGenerate(request_, args_).status();
  EXPECT_EQ(status.message(),
            "messages: chat template: still rendering at the call's deadline, 1m after it was begun; send shorter "
            "messages, allow more time, or ask the operator to look at the template (line 1)");
  now = args_.now;
  args_.deadline = absl::InfiniteFuture();
  bool cancelled = false;
  args_.clock = [&] { return cancelled = true, now; };  // the client leaves during rendering
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

// Too much work in a template or a regex of the model's files is RESOURCE_EXHAUSTED, as the request is well-formed.
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

// OpenAI's content parts, with a template that supports text only.
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
