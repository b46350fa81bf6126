// gpt-oss served: greedy tokens are those of transformers and do not depend on workers, other requests, chunks,
// preemption or where experts are, in any format; any of its end tokens ends a generation; what is refused.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr char kModels[] = "tests/golden/models/";
constexpr int kTokens = 24;
constexpr int kLengths[] = {1, 7, 16, 33, 60};

std::vector<std::vector<int32_t>> TokensOf(const std::vector<StreamSeen>& seen) {
  std::vector<std::vector<int32_t>> tokens;
  for (const StreamSeen& one : seen) {
    EXPECT_TRUE(one.ok()) << one.end << " " << one.fault;
    tokens.push_back(one.choices.empty() ? std::vector<int32_t>() : one.choices[0].token_ids);
  }
  return tokens;
}

// Of prompts that come all at once, then one after the other.
std::vector<std::vector<int32_t>> Tokens(TestServer* server) {
  std::vector<v1::GenerateRequest> requests;
  for (const int length : kLengths) {
    requests.push_back(IdsRequest(RandomIds(length, 256, static_cast<uint64_t>(length)), kTokens));
    requests.back().set_ignore_eos(true);
  }
  std::vector<StreamSeen> seen = GenerateAll(server->client(), requests);
  for (const v1::GenerateRequest& request : requests) seen.push_back(Generate(server->client(), request));
  return TokensOf(seen);
}

class GptOssTest : public testing::Test {
 protected:
  std::unique_ptr<TestServer> Start(const std::string& model, int workers, std::vector<std::string> flags = {}) {
    flags.push_back("--threads=1");
    const bool has_file = std::any_of(flags.begin(), flags.end(), [](const std::string& flag) {
      return absl::StartsWith(flag, "--expert_memory=") || absl::StartsWith(flag, "--placement=");
    });
    if (has_file) flags.push_back(absl::StrCat("--expert_file_dir=", files_.path()));
    return TestServer::Start({.model = model, .workers = workers, .flags = std::move(flags)});
  }

  model::TempDir files_;
};

class GptOssFormatsTest : public GptOssTest, public testing::WithParamInterface<const char*> {};

TEST_P(GptOssFormatsTest, TokensDependOnTheFormatAlone) {
  const std::string model = absl::StrCat(kModels, "gptoss-mxfp4"), format = absl::StrCat("--quantization=", GetParam());
  const auto one = Start(model, 1, {format});
  ASSERT_NE(one, nullptr);
  const auto info = one->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->architecture(), "GptOssForCausalLM");
  if (absl::string_view(GetParam()) == "auto") EXPECT_EQ(info->quantization(), "plain, experts mxfp4");
  const auto expected = Tokens(one.get());
  ASSERT_EQ(expected.size(), 2 * std::size(kLengths));
  struct Case {
    int workers;
    std::vector<std::string> flags;
  };
  for (const Case& c : std::vector<Case>{
           {2, {}},
           {2, {"--placement=no_estimate", "--spare_slots=1"}},
           {2, {"--placement=agreed", "--spare_slots=2"}},
           {1, {"--expert_memory=40%"}},
           {1, {"--prefill_chunk=3", "--prefix_reuse=false", "--micro_batches=2"}},
           // 24 blocks of 4 tokens, of 192 bytes: requests preempt each other.
           {1, {"--block_size=4", absl::StrCat("--kv_cache_bytes=", 24 * 4 * 192), "--max_model_len=90"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", absl::StrJoin(c.flags, " ")));
    std::vector<std::string> flags = c.flags;
    flags.push_back(format);
    const auto server = Start(model, c.workers, flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GptOssFormatsTest, testing::Values("auto", "none", "int8", "int4"),
                         [](const auto& param) { return std::string(param.param); });

// But for the layers with a window and the clamp, which a GGUF file does not say: as in published models, config.json
// does not say them either.
TEST_F(GptOssTest, AFileOfGgufAnswersAsTheDirectoryThatItWasMadeOf) {
  for (const std::string name : {"gptoss-plain", "gptoss-mxfp4"}) {
    SCOPED_TRACE(name);
    const model::TempDir dir;
    std::filesystem::copy(absl::StrCat(kModels, name), dir.path(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    std::ifstream text(dir.path() + "/config.json");
    nlohmann::json config = nlohmann::json::parse(text);
    for (const char* key : {"layer_types", "swiglu_limit", "swiglu_alpha"}) config.erase(key);
    std::ofstream(dir.path() + "/config.json") << config.dump();
    const auto folder = Start(dir.path(), 1);
    ASSERT_NE(folder, nullptr);
    const auto expected = Tokens(folder.get());
    for (const int workers : {1, 2}) {
      const auto file = Start(absl::StrCat("tests/golden/gguf/models/", name, ".gguf"), workers);
      ASSERT_NE(file, nullptr);
      const auto info = file->client().GetModelInfo(), folder_info = folder->client().GetModelInfo();
      ASSERT_TRUE(info.ok() && folder_info.ok()) << info.status();
      EXPECT_EQ(info->quantization(), folder_info->quantization());
      EXPECT_EQ(Tokens(file.get()), expected) << workers;
    }
  }
}

// As <|return|> and <|call|>, which generation_config.json lists beside <|endoftext|>.
TEST_F(GptOssTest, AnyEndTokenOfTheFileEndsAGeneration) {
  const model::TempDir dir;
  std::filesystem::copy(absl::StrCat(kModels, "gptoss-plain"), dir.path(),
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  std::vector<int32_t> tokens;
  v1::GenerateRequest request = IdsRequest(RandomIds(9, 256, 9), kTokens);
  request.set_ignore_eos(false);
  for (const bool listed : {false, true}) {
    std::string ids = "255";
    if (listed) ids = absl::StrCat("[255, ", tokens[4], ", 254]");
    std::ofstream(dir.path() + "/generation_config.json") << "{\"eos_token_id\": " << ids << "}";
    const auto server = Start(dir.path(), 1);
    ASSERT_NE(server, nullptr);
    const StreamSeen seen = Generate(server->client(), request);
    ASSERT_TRUE(seen.ok()) << seen.end;
    ASSERT_EQ(seen.choices.size(), 1u);
    if (!listed) {
      tokens = seen.choices[0].token_ids;
      ASSERT_EQ(tokens.size(), static_cast<size_t>(kTokens));
      EXPECT_EQ(seen.choices[0].finish.reason(), v1::FINISH_REASON_LENGTH);
      continue;
    }
    const auto first = std::find(tokens.begin(), tokens.end(), tokens[4]) - tokens.begin();
    EXPECT_LE(seen.choices[0].token_ids.size(), static_cast<size_t>(first) + 1);
    EXPECT_EQ(seen.choices[0].finish.reason(), v1::FINISH_REASON_STOP);
  }
}

}  // namespace
}  // namespace switchyard
