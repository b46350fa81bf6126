// --model=FILE.gguf: the same tokens and texts as from the directory that the file was made of; blocks that are
// quantized give the same tokens however the model is spread; errors.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/demo_gguf.h"
#include "tests/e2e/expert_servers.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class GgufTest : public ExpertServersTest {
 protected:
  std::unique_ptr<TestServer> StartOn(const std::string& model, int workers, std::vector<std::string> flags = {}) {
    if (HasExpertFile(flags)) flags.push_back(absl::StrCat("--expert_file_dir=", dir_.path()));
    flags.push_back("--threads=1");
    return TestServer::Start({.model = model, .workers = workers, .flags = std::move(flags)});
  }
  std::string Write(const std::string& name, const DemoGguf& options) {
    return dir_.Write(name, DemoGgufBytes(options));
  }
  static std::string ChatText(TestServer* server) {
    v1::GenerateRequest request;
    v1::ChatMessage* const message = request.mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content("What is the capital of France?");
    request.set_max_tokens(24);
    request.mutable_sampling()->set_temperature(0);
    const StreamSeen seen = Generate(server->client(), request);
    EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    return seen.choices.empty() ? "" : seen.choices[0].text;
  }
};

TEST_F(GgufTest, AnswersAsTheDirectoryThatItWasMadeOf) {
  const auto folder = Start(1, {});
  ASSERT_NE(folder, nullptr);
  const auto file = StartOn(Write("demo-BF16.gguf", {}), 1);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(Tokens(file.get()), Tokens(folder.get()));
  const std::string answer = ChatText(file.get());
  EXPECT_EQ(answer, ChatText(folder.get()));
  EXPECT_FALSE(answer.empty());
  const auto info = file->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->model(), "demo-BF16");
  EXPECT_EQ(info->dtype(), "bf16");
}

struct Held {
  DemoBlocks blocks;
  const char* held;
};
class GgufBlocksTest : public GgufTest, public testing::WithParamInterface<Held> {};

TEST_P(GgufBlocksTest, GiveTheSameTokensHoweverTheyAreSpread) {
  const std::string model = Write("demo.gguf", {.blocks = GetParam().blocks});
  const auto one = StartOn(model, 1);
  ASSERT_NE(one, nullptr);
  const auto info = one->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->quantization(), GetParam().held);
  const auto expected = Tokens(one.get());
  // Inputs are rounded to 8 bits beside these, so that answers part sooner or later, but not from the start.
  const auto decoded = StartOn(model, 1, {"--quantization=none"});
  ASSERT_NE(decoded, nullptr);
  size_t alike = 0, all = 0;
  const auto plain = Tokens(decoded.get());
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto end = std::mismatch(plain[i].begin(), plain[i].end(), expected[i].begin(), expected[i].end()).first;
    alike += static_cast<size_t>(end - plain[i].begin());
    all += plain[i].size();
  }
  EXPECT_GE(alike, all / 4);
  struct Case {
    int workers;
    std::vector<std::string> flags;
  };
  for (const Case& c : std::vector<Case>{{2, {}},
                                         {2, {"--placement=no_estimate", "--spare_slots=1"}},
                                         {1, {"--expert_memory=25%"}},
                                         {1, {"--prefill_chunk=3", "--prefix_reuse=false", "--micro_batches=2"}}}) {
    SCOPED_TRACE(absl::StrCat(c.workers, " workers, ", c.flags.empty() ? "" : c.flags[0]));
    const auto server = StartOn(model, c.workers, c.flags);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get()), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, GgufBlocksTest,
                         testing::Values(Held{DemoBlocks::kQ8, "q8_0"},
                                         Held{DemoBlocks::kMixed, "q8_0, experts q8_0 and q4_0"}),
                         [](const auto& each) {
                           return std::string(each.param.blocks == DemoBlocks::kQ8 ? "Q8" : "Mixed");
                         });

TEST_F(GgufTest, WithoutAVocabularyThereAreTokenIdsOnlyOrAnotherTokenizer) {
  const std::string model = Write("bare.gguf", {.vocabulary = false});
  const auto bare = StartOn(model, 1);
  ASSERT_NE(bare, nullptr);
  const StreamSeen seen = Generate(bare->client(), TextRequest("The", 4));
  EXPECT_THAT(std::string(seen.end.message()), HasSubstr("this model has no tokenizer"));
  const auto with = StartOn(model, 1, {absl::StrCat("--tokenizer=", kDemoModel, "/tokenizer.json")});
  ASSERT_NE(with, nullptr);
  EXPECT_TRUE(Generate(with->client(), TextRequest("The", 4)).ok());
}

TEST_F(GgufTest, ErrorsNameTheFile) {
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    const auto process = Process::Start({Binary("switchyard-server"), absl::StrCat("--model=", dir_.Write(name, bytes)),
                                         "--port=0", "--metrics_port=-1"});
    EXPECT_EQ(process->Wait(kStartLimit), 2);
    return process->Output();
  };
  const std::string whole = DemoGgufBytes({});
  EXPECT_THAT(refusal("short.gguf", whole.substr(0, whole.size() - 64)),
              AllOf(HasSubstr("short.gguf"), HasSubstr("ends")));
  EXPECT_THAT(refusal("text.gguf", "no model"), AllOf(HasSubstr("text.gguf"), HasSubstr("it is no GGUF file")));
  EXPECT_THAT(refusal("none-00001-of-00002.txt", whole), HasSubstr("only safetensors"));
}

}  // namespace
}  // namespace switchyard
