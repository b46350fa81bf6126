// Constraints of outputs, end to end: what comes is what the constraint says, and the same alone, together, under
// preemption and when workers are killed.
#include <algorithm>
#include <atomic>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/strict_json.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/metrics_page.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kSchema[] = R"({
  "type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "kind"],
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}},
    "kind": {"enum": ["cat", "dog", null]}
  }})";

v1::GenerateRequest Ask(const std::string& prompt, int max_tokens = 900) {
  v1::GenerateRequest request = TextRequest(prompt, max_tokens);
  request.set_ignore_eos(false);
  return request;
}

std::vector<v1::GenerateRequest> Constrained() {
  std::vector<v1::GenerateRequest> requests;
  for (const char* prompt : {"In the beginning", "The", "naïve café, 日本", "{\"name\":"}) {
    requests.push_back(Ask(prompt));
    requests.back().mutable_constraint()->set_json_schema(kSchema);
    requests.push_back(requests.back());
    requests.back().mutable_sampling()->set_temperature(1.3);
    requests.back().mutable_sampling()->set_seed(7 + requests.size());
    requests.push_back(Ask(prompt, 60));
    requests.back().mutable_constraint()->set_regex("[A-Z][a-z]{3,8}( [a-z]{2,9}){2}\\.");
    requests.push_back(TextRequest(prompt, 30));  // without one
    requests.push_back(Ask(prompt));
    requests.back().mutable_constraint()->set_grammar("root ::= \"(\" (root | [0-9]){1,2} \")\"");
    requests.back().mutable_sampling()->set_temperature(0.8);
    requests.back().mutable_sampling()->set_seed(3);
  }
  return requests;
}

std::vector<std::string> TextsOf(const std::vector<StreamSeen>& answers) {
  std::vector<std::string> texts;
  for (const StreamSeen& seen : answers) {
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    texts.push_back(seen.choices.empty() ? "" : seen.choices[0].text);
  }
  return texts;
}

void ExpectValid(absl::string_view text) {
  nlohmann::json value;
  ASSERT_FALSE(ReadJson(text, JsonLimits(), &value).has_value()) << text;
  ASSERT_TRUE(value.is_object()) << text;
  EXPECT_EQ(value.size(), 4u) << text;
  EXPECT_TRUE(value["name"].is_string()) << text;
  EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 150) << text;
  EXPECT_LE(value["tags"].size(), 3u) << text;
  for (const auto& tag : value["tags"]) EXPECT_THAT(tag.get<std::string>(), testing::MatchesRegex("[a-z]+")) << text;
  EXPECT_TRUE(value["kind"] == "cat" || value["kind"] == "dog" || value["kind"].is_null()) << text;
}

TEST(ConstraintTest, OutputsAreWhatWasAskedForAndTheSameInAnyBatch) {
  std::vector<std::string> alone;
  {
    const auto server = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {"--threads=1"}});
    ASSERT_NE(server, nullptr);
    for (const v1::GenerateRequest& request : Constrained()) {
      const StreamSeen seen = Generate(server->client(), request);
      alone.push_back(TextsOf({seen})[0]);
      const bool free = !request.has_constraint();
      ASSERT_FALSE(seen.choices.empty());
      EXPECT_EQ(seen.choices[0].finish.reason(), free ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_STOP)
          << alone.back();
      if (request.constraint().has_json_schema()) ExpectValid(alone.back());
      if (request.constraint().has_regex()) {
        EXPECT_THAT(alone.back(), testing::MatchesRegex("[A-Z][a-z]+ [a-z]+ [a-z]+\\."));
      }
    }
  }
  for (const char* flag : {"--preempt_every_step=true", "--prefill_chunk=7", "--max_in_flight=1"}) {
    const auto server = TestServer::Start({.model = kDemoModel, .workers = 2, .flags = {"--threads=1", flag}});
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(TextsOf(GenerateAll(server->client(), Constrained())), alone) << flag;
    EXPECT_TRUE(server->WaitIdle());
  }
}

TEST(ConstraintTest, OutputsOutliveKills) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 2, .flags = {"--threads=1"}});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest request = Ask("The", 900);
  request.mutable_constraint()->set_regex("([a-z]{1,6} ){300}\\.");
  const std::vector<v1::GenerateRequest> requests(4, request);
  const std::vector<std::string> before = TextsOf(GenerateAll(server->client(), requests));
  std::vector<StreamSeen> after(requests.size());
  std::atomic<size_t> begun{0};
  std::vector<std::unique_ptr<client::GenerateStream>> streams;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto on_message = [&begun, seen = &after[i]](const v1::GenerateResponse& message) {
      if (seen->choices.empty()) ++begun;
      seen->Add(message);
    };
    streams.push_back(server->client().StartGenerate(request, {.on_message = on_message, .on_done = nullptr}));
  }
  ASSERT_TRUE(WaitUntil([&] { return begun == requests.size(); }, kStartLimit));
  int kills = 0;  // under streams that were open
  for (int round = 0; round < 2; ++round) {
    const auto epoch = server->client().GetLoad()->group_epoch();
    const std::vector<pid_t> pids = server->WorkerPids();
    ASSERT_TRUE(!pids.empty() && pids[0] > 1) << "rank 0 has no worker";
    kills += std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return !stream->Done(); });
    ASSERT_EQ(kill(pids[0], SIGKILL), 0);
    const auto stands_again = [&] {
      const auto load = server->client().GetLoad();
      return load.ok() && load->ready() && load->group_epoch() > epoch;
    };
    ASSERT_TRUE(WaitUntil(stands_again, kStartLimit)) << "round " << round;
  }
  for (size_t i = 0; i < streams.size(); ++i) after[i].end = streams[i]->Wait();
  EXPECT_EQ(TextsOf(after), before);
  EXPECT_GE(kills, 1);
  EXPECT_TRUE(
      WaitUntil([&] { return Value(Scrape(server->metrics_address()), "switchyard_num_outlived_losses_total") > 0; },
                kStartLimit))
      << "nothing was interrupted";
}

TEST(ConstraintTest, ChoicesObjectsAndFaults) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1, .flags = {}});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest choice = Ask("The");
  for (const char* text : {"yes", "no", "maybe not"}) choice.mutable_constraint()->mutable_choice()->add_texts(text);
  choice.set_n(3);
  choice.mutable_sampling()->set_temperature(1);
  choice.mutable_sampling()->set_seed(1);
  const StreamSeen chosen = Generate(server->client(), choice);
  ASSERT_TRUE(chosen.ok()) << chosen.end;
  for (const auto& c : chosen.choices) EXPECT_THAT(c.text, testing::AnyOf("yes", "no", "maybe not"));

  v1::GenerateRequest object = Ask("The", 12);
  object.mutable_constraint()->set_json_object(true);
  const StreamSeen cut = Generate(server->client(), object);
  ASSERT_TRUE(cut.ok()) << cut.end;
  EXPECT_EQ(cut.choices[0].text.substr(0, 1), "{");

  const auto refusal = [&](const auto& spoil) {
    v1::GenerateRequest request = Ask("The");
    spoil(request.mutable_constraint());
    const client::ErrorDescription details = client::Describe(Generate(server->client(), request).end);
    return absl::StrCat(details.reason, " ", details.metadata.count("field") ? details.metadata.at("field") : "");
  };
  EXPECT_EQ(refusal([](v1::Constraint*) {}), "BAD_FIELD constraint");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->set_json_schema("{\"not\": {}}"); }),
            "BAD_FIELD constraint.json_schema");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->set_regex("(?=a)"); }), "BAD_FIELD constraint.regex");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->set_grammar("root ::= x"); }), "BAD_FIELD constraint.grammar");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->set_json_object(false); }), "BAD_FIELD constraint.json_object");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->mutable_choice(); }), "BAD_FIELD constraint.choice.texts");
  EXPECT_EQ(refusal([](v1::Constraint* c) { c->set_regex("((a{0,100}){0,100}){0,100}"); }),
            "CONSTRAINT_FAILED constraint");
}

TEST(ConstraintTest, AModelWithoutTokenizerHasNone) {
  const auto server = TestServer::Start({.model = kTinyModel, .workers = 1, .flags = {}});
  ASSERT_NE(server, nullptr);
  v1::GenerateRequest request = IdsRequest({5, 6, 7}, 8);
  request.mutable_constraint()->set_regex("a");
  EXPECT_EQ(client::Describe(Generate(server->client(), request).end).reason, "NO_TOKENIZER");
}

}  // namespace
}  // namespace switchyard
