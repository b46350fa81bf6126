// The files that the server reads from a model's directory: generation_config.json and the tokenizer.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config.h"
#include "server/text/generation_config.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST(GenerationConfig, AMissingFileGivesNothing) {
  model::TempDir dir;
  const auto defaults = text::LoadGenerationDefaults(*ModelDir::Open(dir.path()));
  ASSERT_TRUE(defaults.ok());
  EXPECT_FALSE(defaults->temperature);
  EXPECT_TRUE(defaults->eos_token_ids.empty());
}

TEST(GenerationConfig, ReadsOneOrSeveralEndTokensAndIgnoresTheRest) {
  model::TempDir dir;
  dir.Write(
      "generation_config.json",
      R"({"eos_token_id": [7, 8], "temperature": null, "top_k": 50, "transformers_version": "5.0", "x": {"y": 1}})");
  auto defaults = text::LoadGenerationDefaults(*ModelDir::Open(dir.path()));
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(defaults->eos_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_FALSE(defaults->temperature);
  EXPECT_EQ(defaults->top_k, 50);
  dir.Write("generation_config.json", R"({"eos_token_id": 2})");
  defaults = text::LoadGenerationDefaults(*ModelDir::Open(dir.path()));
  ASSERT_TRUE(defaults.ok());
  EXPECT_EQ(defaults->eos_token_ids, std::vector<int32_t>{2});
}

struct BadFile {
  const char* content;
  const char* message;  // after the path
};

TEST(GenerationConfig, BadFilesSayWhatIsWrong) {
  model::TempDir dir;
  const std::string deep = "{\"top_p\": " + std::string(99999, '[') + std::string(99999, ']') + "}";
  const std::string huge = "{\"x\": \"" + std::string(1 << 20, 'x') + "\"}";
  for (const BadFile& bad : {
           BadFile{"[1]", ": not a JSON object"},
           BadFile{"{\"a\": ", ": not a JSON object"},
           BadFile{"", ": not a JSON object"},
           BadFile{"\xff", ": not a JSON object"},
           BadFile{R"({"temperature": "hot"})", ": temperature: expected a number within [0, 100], found \"hot\""},
           BadFile{R"({"temperature": -1})", ": temperature: expected a number within [0, 100], found -1"},
           BadFile{R"({"top_p": 2})", ": top_p: expected a number within (0, 1], found 2"},
           BadFile{R"({"top_p": 0})", ": top_p: expected a number within (0, 1], found 0"},
           BadFile{R"({"top_k": -2})", ": top_k: expected a whole number within [-1, 1e+09], found -2"},
           BadFile{R"({"top_k": 1.5})", ": top_k: expected a whole number within [-1, 1e+09], found 1.5"},
           BadFile{R"({"min_p": 1.5})", ": min_p: expected a number within [0, 1], found 1.5"},
           BadFile{R"({"repetition_penalty": 0})", ": repetition_penalty: expected a number within (0, 10], found 0"},
           BadFile{R"({"temperature": NaN})", ": not a JSON object"},
           BadFile{R"({"max_new_tokens": 0})",
                   ": max_new_tokens: expected a whole number within [1, 2.14748e+09], found 0"},
           BadFile{R"({"min_new_tokens": -1})",
                   ": min_new_tokens: expected a whole number within [0, 2.14748e+09], found -1"},
           BadFile{R"({"stop_strings": 5})",
                   ": stop_strings: expected at most 64 strings of 1 to 1024 bytes each, found 5"},
           BadFile{R"({"stop_strings": ["a", ""]})",
                   ": stop_strings: expected at most 64 strings of 1 to 1024 bytes each, found [\"a\",\"\"]"},
           BadFile{R"({"eos_token_id": "end"})", ": eos_token_id: expected token ids, found \"end\""},
           BadFile{R"({"eos_token_id": [1, -2]})", ": eos_token_id: expected token ids, found [1,-2]"},
           BadFile{R"({"eos_token_id": 99999999999})", ": eos_token_id: expected token ids, found 99999999999"},
           BadFile{huge.c_str(), ": 1048585 bytes, limit 1048576"},
           BadFile{deep.c_str(), ": nested 100000 deep, limit 16"},
       }) {
    const std::string path = dir.Write("generation_config.json", bad.content);
    const auto defaults = text::LoadGenerationDefaults(*ModelDir::Open(dir.path()));
    EXPECT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(defaults.status().message()), path + bad.message);
  }
}

// A FIFO would block the start, and a link could lead anywhere.
TEST(GenerationConfig, OnlyRegularFilesOfTheModelAreRead) {
  model::TempDir dir, outside;
  const std::string path = dir.path() + "/generation_config.json";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(std::string(text::LoadGenerationDefaults(*ModelDir::Open(dir.path())).status().message()),
            path + ": not a regular file");
  unlink(path.c_str());
  outside.Write("elsewhere.json", R"({"top_k": 5})");
  std::filesystem::create_symlink(outside.path() + "/elsewhere.json", path);
  const absl::Status status = text::LoadGenerationDefaults(*ModelDir::Open(dir.path())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(std::string(status.message()), path + ": its link leads out of the model directory");
  std::filesystem::remove(path);
  dir.Write("here.json", R"({"top_k": 5})");
  std::filesystem::create_symlink("here.json", path);
  EXPECT_EQ(text::LoadGenerationDefaults(*ModelDir::Open(dir.path()))->top_k, 5);
}

TEST(TextProcessorLoad, TheModelsTokenizerMustNotBeALinkOutOfItsDirectory) {
  model::TempDir dir, outside;
  outside.Write("tokenizer.json", TinyTokenizerJson());
  std::filesystem::create_symlink(outside.path() + "/tokenizer.json", dir.path() + "/tokenizer.json");
  ServerConfig config;
  config.model = dir.path();
  EXPECT_THAT(std::string(text::TextProcessor::Load(config).status().message()),
              HasSubstr("leads out of the model directory"));
  config.tokenizer = outside.path() + "/tokenizer.json";  // as --tokenizer=FILE it may be anywhere
  EXPECT_TRUE(text::TextProcessor::Load(config).ok());
}

// Many finetunes for chats have their end token in tokenizer_config.json alone.
TEST(TextProcessorLoad, TheTokenizersEndTokenEndsAnswersToo) {
  model::TempDir dir;
  dir.Write("tokenizer.json", TinyTokenizerJson());
  ServerConfig config;
  config.model = dir.path();
  const auto ends = [&config] {
    const auto text = text::TextProcessor::Load(config);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? (*text)->defaults().eos_token_ids : std::vector<int32_t>();
  };
  EXPECT_EQ(ends(), std::vector<int32_t>());
  dir.Write("generation_config.json", R"({"eos_token_id": 7})");
  dir.Write("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{7, kEnd}));
  dir.Write("generation_config.json", absl::StrCat("{\"eos_token_id\": [", kEnd, ", 7]}"));
  dir.Write("tokenizer_config.json", R"({"eos_token": {"content": "<|end|>", "special": true}})");
  EXPECT_EQ(ends(), (std::vector<int32_t>{kEnd, 7}));
  // What names no token of the tokenizer adds none, and does not end the start.
  for (const char* other : {R"({"eos_token": "<|none|>"})", R"({"eos_token": null})", R"({"eos_token": 5})"}) {
    dir.Write("tokenizer_config.json", other);
    EXPECT_EQ(ends(), (std::vector<int32_t>{kEnd, 7})) << other;
  }
}

TEST(ModelDirOfTextsTest, HasItsTextsAlone) {
  const ModelDir dir = ModelDir::OfTexts("m.gguf", {{"config.json", "12345"}});
  EXPECT_TRUE(dir.Exists("config.json"));
  EXPECT_EQ(*dir.ReadSmallFile("config.json", 5), "12345");
  EXPECT_EQ(dir.ReadSmallFile("config.json", 4).status().message(), "config.json: 5 bytes, limit 4");
  EXPECT_FALSE(dir.Exists("tokenizer.json"));
  EXPECT_EQ(dir.ReadSmallFile("tokenizer.json", 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(dir.OpenFile("config.json").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(dir.Folder("config.json").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(dir.List(), std::vector<std::string>{"config.json"});
}

TEST(NoModelDirectoryTest, SaysWhatToDoInstead) {
  ServerConfig config;
  const auto why = [&config](const std::string& model) {
    config.model = model;
    const std::string prefix = "--model=" + model + ": ", text(config.Finish().message());
    return text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
  };
  EXPECT_EQ(why("Qwen/Qwen3-30B-A3B"),
            "no such directory; if it is a model's name on a hub, download it: hf download Qwen/Qwen3-30B-A3B "
            "--local-dir Qwen3-30B-A3B; then --model=Qwen3-30B-A3B");
  for (const char* path : {"/none", "a/b/c", "./a/b", "/a/b", "none", "../none", "none/.."}) {
    EXPECT_EQ(why(path), "no such directory") << path;
  }
  EXPECT_EQ(why("none.gguf"), "no such file");
  const model::TempDir dir;
  EXPECT_EQ(why(dir.Write("model.safetensors", "")), "is a file; give the directory that holds it");
}

}  // namespace
}  // namespace switchyard::server
