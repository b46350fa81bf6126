// Bad training text: each case with its code and message, and no files left behind.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "scheduler/base/text/utf8.h"
#include "scheduler/jobs/token_format.h"
#include "tests/server/jobs/pack/pack_fixture.h"

namespace switchyard::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct BadFile {
  std::string name;
  std::string contents;
  std::string message;
};

class BadFileTest : public PackTest, public testing::WithParamInterface<BadFile> {};

TEST_P(BadFileTest, IsRefused) {
  const absl::Status status = PackText(GetParam().contents).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_LT(status.message().size(), 500u);
  EXPECT_EQ(FindInvalidUtf8(status.message()), absl::string_view::npos);
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

const std::string kGood = "{\"text\": \"ab\"}\n";

INSTANTIATE_TEST_SUITE_P(
    Files, BadFileTest,
    testing::ValuesIn(std::vector<BadFile>{
        {"Empty", "", "in.jsonl: has no documents"},
        {"Blank", "\n \r\n\n", "in.jsonl: has no documents"},
        {"TruncatedRecord", kGood + "{\"text\": \"a", "in.jsonl:2 (byte 15): not JSON: parse error"},
        {"InvalidUtf8", kGood + "\n{\"text\": \"a\xff\"}\n",
         "in.jsonl:3 (byte 16): not valid UTF-8 at byte 11 of the line: \"\\xff\\\"}\""},
        {"LoneSurrogate", "{\"text\": \"\\ud800\"}", "in.jsonl:1 (byte 0): not JSON: "},
        {"Utf16", std::string("\xff\xfe{\0\"\0", 6), "in.jsonl:1 (byte 0): not valid UTF-8 at byte 0"},
        {"Zeros", std::string(1000, '\0'), "in.jsonl:1 (byte 0): not JSON: "},
        {"Gzip", "\x1f\x8b\x08 and so on", "in.jsonl: is compressed (gzip)"},
        {"Zstd", "\x28\xb5\x2f\xfd and so on", "in.jsonl: is compressed (zstd)"},
        {"PackedTokens", jobs::EncodeTokenHeader({.num_tokens = 1, .num_documents = 1}), "in.jsonl:1 (byte 0): not "},
        {"NoObject", "[1]", "the line: expected an object, found array"},
        {"TrailingJunk", "{\"text\": \"a\"} {}", "not JSON: "},
        {"NoKnownKey", "{\"txt\": \"a\"}",
         "exactly one of text, messages, prompt with completion is wanted; the keys are \"txt\""},
        {"TwoKinds", "{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}", "exactly one of text"},
        {"PromptAlone", "{\"prompt\": \"b\"}", "exactly one of text, messages, prompt with completion"},
        {"TextNumber", "{\"text\": 3}", "text: expected a text, found number"},
        {"TwiceAKey", "{\"text\": \"a\", \"text\": \"b\"}", "a key is there twice"},
        {"Deep", "{\"text\": \"a\", \"x\": " + std::string(100, '[') + std::string(100, ']') + "}",
         "nested 101 deep, limit 64"},
        {"NoMessages", "{\"messages\": []}", "messages: expected a list of at least one message, found array"},
        {"NoRole", "{\"messages\": [{\"content\": \"a\"}]}", "messages[0].role: is missing"},
        {"ContentNumber", "{\"messages\": [{\"role\": \"user\", \"content\": 7}]}",
         "messages[0].content: expected a text, found number"},
        {"NobodyAnswers", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "messages: none is the assistant's"},
        {"LongValue", "{\"text\": [1], \"prompt\": \"" + std::string(5000, 'x') + "\"}", "exactly one of text"},
        {"LongJunk", std::string(5000, 'x'), "the line begins with \"" + std::string(64, 'x') + "\"..."},
    }),
    [](const auto& info) { return info.param.name; });

TEST_F(PackTest, ErrorsHaveFileLineAndByteForPrograms) {
  const absl::Status status = PackText(kGood + "{}\n").status();
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(status, ""));
  EXPECT_EQ(view.reason, "BAD_FILE");
  EXPECT_EQ(view.details.metadata().at("file"), "in.jsonl");
  EXPECT_EQ(view.details.metadata().at("line"), "2");
  EXPECT_EQ(view.details.metadata().at("byte"), "15");
}

// The reported line is the first in the file, not the first that a thread finds.
TEST_F(PackTest, TheFirstBadLineIsReported) {
  std::string lines;
  for (int i = 0; i < 50'000; ++i) lines += i == 30'000 || i == 49'000 ? "{}\n" : kGood;
  const absl::Status status = PackText(lines).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("in.jsonl:30001 (byte 450000): "));
}

TEST_F(PackTest, ALongLineIsRefusedBeforeItIsRead) {
  PackerOptions options = Options();
  options.max_line_bytes = 1 << 20;
  datasets_.Write("in.jsonl", kGood);
  ASSERT_EQ(truncate((datasets_.path() + "/in.jsonl").c_str(), off_t{1} << 40), 0);  // a sparse terabyte
  const absl::Status status = Pack(Request(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in.jsonl:2 (byte 15): a line of more than 1048576 bytes"));
  datasets_.Write("in.jsonl", "{}\n" + std::string(3 << 20, 'x'));
  EXPECT_THAT(std::string(Pack(Request(), options).status().message()), HasSubstr("in.jsonl:1 (byte 0): exactly one"));
  options.max_line_bytes = 20;
  datasets_.Write("in.jsonl", kGood + "{\"text\": \"" + std::string(20, 'x') + "\"}\n");
  EXPECT_THAT(std::string(Pack(Request(), options).status().message()),
              HasSubstr("in.jsonl:2 (byte 15): a line of 32 bytes, limit 20"));
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

TEST_F(PackTest, OnlyRegularFilesBeneathTheRoot) {
  const model::TempDir outside;
  outside.Write("secret.jsonl", kGood);
  std::filesystem::create_symlink(outside.path() + "/secret.jsonl", datasets_.path() + "/link.jsonl");
  std::filesystem::create_symlink(outside.path(), datasets_.path() + "/away");
  std::filesystem::create_directory(datasets_.path() + "/folder.jsonl");
  ASSERT_EQ(mkfifo((datasets_.path() + "/pipe.jsonl").c_str(), 0600), 0);
  const auto inputs = [&](const std::string& input) {
    PackRequest request = Request();
    request.inputs = {input};
    return Pack(request).status();
  };
  for (const std::string& path : std::vector<std::string>{
           "/etc/passwd.jsonl", "../x.jsonl", "a/../../x.jsonl", "~/x.jsonl", "file:///x.jsonl", "",
           std::string("a\0.jsonl", 8), std::string(5000, 'x') + ".jsonl", "link.jsonl", "away/secret.jsonl"}) {
    const absl::Status status = inputs(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("path must be under the dataset root")) << path;
  }
  for (const char* path : {"folder.jsonl", "pipe.jsonl"}) {
    EXPECT_THAT(std::string(inputs(path).message()), HasSubstr("not a regular file")) << path;
  }
  EXPECT_EQ(inputs("none.jsonl").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(inputs("a.txt").message()), HasSubstr("\"a.txt\" does not end in .jsonl"));
}

TEST_F(PackTest, OutputsStayBeneathTheRootToo) {
  const model::TempDir outside;
  std::filesystem::create_symlink(outside.path(), datasets_.path() + "/away");
  datasets_.Write("in.jsonl", kGood);
  const auto output = [&](const std::string& path) {
    PackRequest request = Request();
    request.output = path;
    return Pack(request).status();
  };
  for (const char* path : {"../out.bin", "/tmp/out.bin", "away/out.bin", "away/new/out.bin"}) {
    const absl::Status status = output(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("path must be under the dataset root"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(outside.path()));
  EXPECT_THAT(std::string(output("out.txt").message()), HasSubstr("\"out.txt\" does not end in .bin"));
}

TEST_F(PackTest, UnreadableFilesAreRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  datasets_.Write("in.jsonl", kGood);
  chmod((datasets_.path() + "/in.jsonl").c_str(), 0);
  EXPECT_EQ(Pack(Request()).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(PackTest, TheTokenizersFolderIsBeneathTheCheckpointRoot) {
  datasets_.Write("in.jsonl", kGood);
  std::filesystem::create_directory_symlink(checkpoints_.path() + "/models/tiny", checkpoints_.path() + "/link");
  const auto tokenizer = [&](const std::string& folder) {
    PackRequest request = Request();
    request.tokenizer = folder;
    return Pack(request).status();
  };
  EXPECT_THAT(std::string(tokenizer("../x").message()), HasSubstr("path must be under the checkpoint root"));
  EXPECT_EQ(tokenizer("models/none").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tokenizer("link").code(), absl::StatusCode::kInvalidArgument) << "an absolute link";
  EXPECT_EQ(tokenizer("models").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(tokenizer("models").message()), HasSubstr("models: has no tokenizer.json"));
  WriteModel("tokenizer_config.json", "{}");
  EXPECT_THAT(std::string(tokenizer("models/tiny").message()), HasSubstr("has an eos_token"));
  WriteModel("tokenizer_config.json", R"({"eos_token": "<|nobody|>"})");
  EXPECT_THAT(std::string(tokenizer("models/tiny").message()), HasSubstr("\"<|nobody|>\" is no token"));
  WriteModel("tokenizer.json", "{");
  EXPECT_THAT(std::string(tokenizer("models/tiny").message()), HasSubstr("models/tiny/tokenizer.json"));
  EXPECT_THAT(Names(), ElementsAre("in.jsonl"));
}

TEST_F(PackTest, ConversationsNeedATemplate) {
  std::filesystem::remove(checkpoints_.path() + "/models/tiny/chat_template.jinja");
  const std::string chat = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}";
  const absl::Status status = PackText(chat).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("in.jsonl:1 (byte 0): messages: the tokenizer's folder has no chat"));
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(status, "")).reason, "NO_CHAT_TEMPLATE");
  WriteModel("chat_template.jinja", "{{ raise_exception('only questions') }}");
  EXPECT_THAT(std::string(PackText(chat).status().message()),
              HasSubstr("in.jsonl:1 (byte 0): messages: chat template: only questions"));
  WriteModel("chat_template.jinja", "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}");
  const absl::Status slow = PackText(chat).status();
  EXPECT_EQ(slow.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(rpc::ViewError(rpc::ToGrpcStatus(slow, "")).reason, "TEXT_LIMIT");
}

TEST_F(PackTest, WithoutRootsNothingIsPacked) {
  PackerOptions options = Options();
  options.dataset_root = "";
  EXPECT_EQ(Pack(Request(), options).status().code(), absl::StatusCode::kFailedPrecondition);
  options = Options();
  options.checkpoint_root = "";
  datasets_.Write("in.jsonl", kGood);
  EXPECT_EQ(Pack(Request(), options).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace switchyard::server
