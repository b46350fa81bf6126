// A model that is served with several LoRA adapters beside each other (--adapters), chosen by a request's model: greedy
// tokens are PEFT's (tests/golden/adapters) in any mixture.  Their names: adapters_names_test.cc.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/e2e/harness.h"
#include "workers/checkpoint/tensors/weights_file.h"

namespace switchyard {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

constexpr char kAdapters[] = "tests/golden/adapters";
constexpr absl::Duration kLimit = absl::Seconds(60);

struct Continuation {
  std::string model;  // as it is asked for
  std::vector<int32_t> prompt, tokens;
};

// Of each prompt for the model as it is and for both adapters.
std::vector<Continuation> Golden(const std::string& model) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(kAdapters);
  SY_CHECK_OK(dir.status());
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, absl::StrCat("beside-", model, ".safetensors"));
  SY_CHECK_OK(file.status());
  const auto read = [&](const std::string& name) {
    std::vector<int32_t> values;
    for (const auto& [each, entry] : (*file)->tensors()) {
      if (each != name) continue;
      values.resize(static_cast<size_t>(entry.bytes) / sizeof(int32_t));
      SY_CHECK_OK((*file)->Read(entry.begin, entry.bytes, values.data()));
    }
    SY_CHECK(!values.empty());
    return values;
  };
  std::vector<Continuation> all;
  for (int i = 0; i < 3; ++i) {
    for (const auto& [name, suffix] :
         {std::pair("other", ":other"), std::pair("base", ""), std::pair("lora", ":lora")}) {
      all.push_back(
          {model + suffix, read(absl::StrCat(name, ".", i, ".prompt")), read(absl::StrCat(name, ".", i, ".tokens"))});
    }
  }
  return all;
}

std::vector<std::string> Flags(const std::string& model, std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"--threads=1", "--dtype=fp32",
               absl::StrCat("--adapters=lora=", kAdapters, "/lora-", model, ",other=", kAdapters, "/other-", model)});
  return more;
}

std::string PathOf(const std::string& model) { return "tests/golden/models/" + model; }

v1::GenerateRequest RequestFor(const Continuation& golden) {
  v1::GenerateRequest request = IdsRequest(golden.prompt, static_cast<int>(golden.tokens.size()));
  request.set_ignore_eos(true);
  request.set_model(golden.model);
  return request;
}

class AdaptersServedTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, AdaptersServedTest, testing::Values("olmoe-clip", "qwen2-shared"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

TEST_P(AdaptersServedTest, MixedInOneBatchTheyAnswerAsPeft) {
  const std::vector<Continuation> golden = Golden(GetParam());
  std::vector<v1::GenerateRequest> requests;
  for (const Continuation& each : golden) requests.push_back(RequestFor(each));
  for (const int workers : {1, 2}) {
    const auto server = TestServer::Start(
        {.model = PathOf(GetParam()), .workers = workers, .flags = Flags(GetParam(), {"--min_rebalance_rows=1"})});
    ASSERT_NE(server, nullptr);
    for (const char* const round : {"first", "with prompts that are cached"}) {
      const std::vector<StreamSeen> seen = GenerateAll(server->client(), requests);
      for (size_t i = 0; i < golden.size(); ++i) {
        ASSERT_TRUE(seen[i].ok()) << seen[i].end << " " << seen[i].fault;
        EXPECT_EQ(seen[i].model, golden[i].model);
        EXPECT_EQ(seen[i].choices.at(0).token_ids, golden[i].tokens)
            << golden[i].model << ", " << workers << " workers, " << round;
      }
    }
    if (workers == 1) continue;
    const std::string page = Scrape(server->metrics_address());
    EXPECT_THAT(page, ContainsRegex("switchyard_rows_lent_total\\{[^}]*\\} [1-9]"));
    EXPECT_THAT(page, ContainsRegex("switchyard_adapter_requests_total\\{adapter=\"[^}]*\\} [1-9]"));
  }
}

class AdaptersTest : public testing::Test {
 protected:
  static constexpr char kModel[] = "olmoe-clip";
  const std::vector<Continuation> golden_ = Golden(kModel);
};

// Choices and logprobs are the adapter's, and so are prompt logprobs, with cached blocks or without.
TEST_F(AdaptersTest, ChoicesAndLogprobsAreTheAdapters) {
  const auto server = TestServer::Start({.model = PathOf(kModel), .flags = Flags(kModel)});
  ASSERT_NE(server, nullptr);
  std::vector<std::vector<float>> scores;
  for (size_t i = 3; i < 6; ++i) {
    v1::GenerateRequest request = RequestFor(golden_[i]);
    request.set_n(2);
    request.set_logprobs(0);
    request.set_prompt_logprobs(0);
    const StreamSeen seen = Generate(server->client(), request);
    ASSERT_TRUE(seen.ok()) << seen.end;
    ASSERT_EQ(seen.choices.size(), 2u);
    for (const StreamSeen::Choice& choice : seen.choices) EXPECT_EQ(choice.token_ids, golden_[i].tokens);
    std::vector<float>& of = scores.emplace_back();
    for (const v1::PositionLogprobs& each : seen.prompt_logprobs) of.push_back(each.chosen().logprob());
    EXPECT_EQ(of.size(), golden_[i].prompt.size() - 1);
  }
  EXPECT_NE(scores[0], scores[1]);
  EXPECT_NE(scores[0], scores[2]);
  EXPECT_NE(scores[1], scores[2]);
}

// Sequences that are preempted, and those whose worker is lost, go on with their adapters.  (Preemptions also make them
// last long enough.)
TEST_F(AdaptersTest, OutliveALostWorker) {
  constexpr int kTokens = 600;
  const auto server =
      TestServer::Start({.model = PathOf(kModel), .workers = 2, .flags = Flags(kModel, {"--preempt_every_step=true"})});
  ASSERT_NE(server, nullptr);
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<int32_t>> want;
  for (size_t i = 0; i < 3; ++i) {
    requests.push_back(RequestFor(golden_[i]));
    requests.back().set_max_tokens(kTokens);
    const StreamSeen seen = Generate(server->client(), requests.back());
    ASSERT_TRUE(seen.ok()) << seen.end;
    want.push_back(seen.choices.at(0).token_ids);
    EXPECT_EQ(std::vector<int32_t>(want[i].begin(), want[i].begin() + static_cast<int64_t>(golden_[i].tokens.size())),
              golden_[i].tokens);
  }
  std::vector<StreamSeen> seen(requests.size());
  std::vector<std::atomic<bool>> begun(requests.size());
  std::vector<std::unique_ptr<client::GenerateStream>> calls;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto on_message = [&seen, &begun, i](const v1::GenerateResponse& message) {
      seen[i].Add(message);
      if (!seen[i].choices.empty() && !seen[i].choices[0].token_ids.empty()) begun[i] = true;
    };
    calls.push_back(server->client().StartGenerate(requests[i], {.on_message = on_message, .on_done = nullptr}));
  }
  const auto all_begun = [&] {
    return std::all_of(begun.begin(), begun.end(), [](const auto& each) { return each.load(); });
  };
  ASSERT_TRUE(WaitUntil(all_begun, kLimit));
  ASSERT_EQ(kill(server->WorkerPids().at(1), SIGKILL), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::Status end = calls[i]->Wait();
    ASSERT_TRUE(end.ok()) << end;
    EXPECT_EQ(seen[i].choices.at(0).token_ids, want[i]) << requests[i].model();
  }
  const auto page = [&] { return Scrape(server->metrics_address()); };
  EXPECT_TRUE(WaitUntil(
      [&] { return testing::Value(page(), ContainsRegex("switchyard_groups_lost_total\\{[^}]*\\} 1")); }, kLimit));
  EXPECT_THAT(page(), ContainsRegex("switchyard_num_preemptions_total\\{[^}]*\\} [1-9]"));
}

TEST_F(AdaptersTest, WhatDoesNotFitIsRefusedAtTheStart) {
  const auto refusal = [](const std::string& adapters) {
    const auto process = Process::Start({Binary("switchyard-server"), "--model=" + PathOf(kModel), "--port=0",
                                         "--http_port=-1", "--metrics_port=-1", "--adapters=" + adapters});
    EXPECT_EQ(process->Wait(kLimit), 2) << process->Output();
    return process->Output();
  };
  EXPECT_THAT(refusal("a=/nonexistent"),
              HasSubstr("--adapters: a=/nonexistent: is no directory with an adapter_config"));
  EXPECT_THAT(refusal("a b=x"), HasSubstr("adapter name \"a b\": must be of letters"));
  EXPECT_THAT(refusal(absl::StrCat("good=", kAdapters, "/lora-olmoe-clip,bad=", kAdapters, "/lora-mixtral-window")),
              testing::AllOf(HasSubstr("--adapters: bad=tests/golden/adapters/lora-mixtral-window: model.layers.0."),
                             HasSubstr("the adapter is for [")));
}

}  // namespace
}  // namespace switchyard
