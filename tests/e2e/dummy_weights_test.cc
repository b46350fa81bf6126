// --load_format=dummy: a directory with only config.json is served with random weights, the same ones each time.
#include <filesystem>

#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/process.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using Answers = std::vector<std::vector<int32_t>>;

// The answers of a new server, each asked for twice.
Answers AnswersOf(const std::string& model, int workers) {
  const auto server =
      TestServer::Start({.model = model, .workers = workers, .flags = {"--load_format=dummy", "--max_model_len=160"}});
  if (server == nullptr) return {};
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(IdsRequest({5, 9 + i, 17, 30 + 2 * i}, 16));
    requests.back().mutable_sampling()->set_temperature(0);
  }
  Answers answers, again;
  for (const StreamSeen& seen : GenerateAll(server->client(), requests)) {
    EXPECT_TRUE(seen.ok()) << seen.end << seen.fault;
    if (!seen.choices.empty()) answers.push_back(seen.choices[0].token_ids);
  }
  for (const StreamSeen& seen : GenerateAll(server->client(), requests)) {
    if (!seen.choices.empty()) again.push_back(seen.choices[0].token_ids);
  }
  EXPECT_EQ(answers, again);
  return answers;
}

TEST(DummyWeightsTest, ConfigAloneServesAndAlwaysTheSame) {
  const model::TempDir dir;
  std::filesystem::copy_file(std::string(kTinyModel) + "/config.json", dir.File("config.json"));
  const Answers one = AnswersOf(dir.path(), 1);
  ASSERT_EQ(one.size(), 3u);
  for (const std::vector<int32_t>& answer : one) EXPECT_EQ(answer.size(), 16u);
  EXPECT_NE(one[0], one[1]) << "the prompt does not matter";
  EXPECT_EQ(AnswersOf(dir.path(), 2), one) << "an expert's weights depend on who holds it";
}

TEST(DummyWeightsTest, WithoutItAConfigAloneIsRefused) {
  const model::TempDir dir;
  std::filesystem::copy_file(std::string(kTinyModel) + "/config.json", dir.File("config.json"));
  const auto server = Process::Start(
      {Binary("switchyard-server"), "--model=" + dir.path(), "--port=0", "--metrics_port=0", "--local_workers=1"});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(server->WaitForOutput("safetensors", absl::Seconds(60))) << server->Output();
}

}  // namespace
}  // namespace switchyard
