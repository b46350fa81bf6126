// The catalogue of specs with bad paths, bad files of data or models, and files that do not fit the spec: each with
// its code, reason and message.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "scheduler/jobs/token_format.h"
#include "switchyard/v1/training.pb.h"
#include "tests/server/jobs/api/bad_specs_fixture.h"
#include "tests/server/jobs/training_fixture.h"

namespace switchyard::server {
namespace {

std::vector<BadSpec> BadFiles() {
  const auto data = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_datasets(0, path); }; };
  return {
      {"NoData", [](auto* s) { s->clear_datasets(); }, kBad, "BAD_FIELD", "datasets: none"},
      {"Absolute", data("/etc/passwd.bin"), kBad, "BAD_FIELD", "path must be under the dataset root: it is absolute"},
      {"DotDot", data("../models/x.bin"), kBad, "BAD_FIELD", "path must be under the dataset root"},
      {"Home", data("~/x.bin"), kBad, "BAD_FIELD", "path must be under the dataset root"},
      {"Url", data("http://x/y.bin"), kBad, "BAD_FIELD", "it is a URL"},
      {"Nul", [](auto* s) { s->set_datasets(0, std::string("a\0.bin", 6)); }, kBad, "BAD_FIELD", "it has a NUL"},
      {"Long", [](auto* s) { s->set_datasets(0, std::string(5000, 'x') + ".bin"); }, kBad, "BAD_FIELD", "at most 4096"},
      {"OtherKind", data("a.gz"), kBad, "BAD_FIELD", "ends neither in .jsonl nor in .bin"},
      {"Part", data("sub/../a.bin"), kBad, "BAD_FIELD", "it has an empty part, . or .."},
      {"Missing", data("none.bin"), kNone, "BAD_FILE", "spec.datasets[0]: \"none.bin\": not in the dataset root"},
      {"LinkOut", data("out.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"out.bin\": path must be under"},
      {"FolderOut", data("away/secret.bin"), kBad, "BAD_FILE", "\"away/secret.bin\": path must be under"},
      {"Device", data("null.bin"), kBad, "BAD_FILE", "\"null.bin\": path must be under the dataset root"},
      {"Socket", data("socket.bin"), kBad, "BAD_FILE", "not a regular file"},
      {"Fifo", data("fifo.bin"), kBad, "BAD_FILE", "not a regular file"},
      {"Folder", data("folder.bin"), kBad, "BAD_FILE", "not a regular file"},
      {"Empty", data("empty.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"empty.bin\": token file: "},
      {"WrongMagic", data("magic.bin"), kBad, "BAD_FILE",
       "\"magic.bin\": token file: begins neither as one of ours (SYTOKENS) nor as one of llm.c"},
      {"Truncated", data("short.bin"), kBad, "BAD_FILE", "bytes, it has 500"},
      {"SparseTerabyte", data("sparse.bin"), kBad, "BAD_FILE", "bytes, it has 1099511627776"},
      {"OtherVersion", data("version.bin"), kBad, "BAD_FILE", "version 2, this program reads 1"},
      {"OtherEndianness", data("endian.bin"), kBad, "BAD_FILE", "version 16777216, this program reads 1"},
      {"DamagedHeader", data("header.bin"), kBad, "BAD_FILE", "its header is damaged: another hash"},
      {"TokensPastAnyFile", data("length.bin"), kBad, "BAD_FILE", "\"length.bin\": token file: "},
      {"OtherVocabulary", data("vocab.bin"), kBad, "BAD_FILE", "made for a vocabulary of 301, the model has 300"},
      {"TokenOutside", data("outside.bin"), kBad, "BAD_FILE",
       "spec.datasets[0]: \"outside.bin\": token 999 is 300, outside [0, 300)"},
      {"LlmcTokenOutside", data("llmc.bin"), kBad, "BAD_FILE", "\"llmc.bin\": token 7 is 65535, outside [0, 300)"},
      {"NoTarget", data("untrained.bin"), kBad, "BAD_FILE",
       "spec.datasets: none of the 1000 tokens of 1 file is a target in a window of 16 tokens, at least 1 is wanted"},
      {"NoTargetToEvaluate", [](auto* s) { s->add_evaluation("untrained.bin"); }, kBad, "BAD_FILE",
       "spec.evaluation: none of the 1000 tokens of 1 file is a target in a window of 16 tokens"},
      {"NoTargetInASet",
       [](auto* s) {
         s->add_evaluation("a.bin");
         s->add_evaluation("untrained.bin");
       },
       kBad, "BAD_FILE", "spec.evaluation: set \"untrained\": none of the 1000 tokens of 1 file is a target"},
      {"NamesOfSets",
       [](auto* s) {
         s->add_evaluation("a.bin");
         s->add_evaluation_names("a");
         s->add_evaluation_names("b");
       },
       kBad, "BAD_FIELD", "evaluation_names: 2 for 1 files of evaluation; none, or one for each is wanted"},
      {"BadEvaluation", [](auto* s) { s->add_evaluation("none.jsonl"); }, kNone, "BAD_FILE", "spec.evaluation[0]"},
  };
}

// Files of which no sequences can be made.
std::vector<BadSpec> BadWindows() {
  const auto concatenated = [](const char* path) {
    return [path](v1::JobSpec* spec) {
      spec->set_datasets(0, path);
      spec->set_packing(v1::WINDOW_PACKING_CONCATENATE);
    };
  };
  return {
      {"WeightWithoutASequence",
       [](auto* s) {
         s->set_packing(v1::WINDOW_PACKING_CONCATENATE);
         s->set_sequence_length(64);
         s->add_datasets("few.bin");
         s->add_dataset_weights(1);
         s->add_dataset_weights(1);
       },
       kBad, "BAD_FILE", "spec.datasets[1]: \"few.bin\" has a weight, but its 64 tokens fill no window of 64"},
      {"FewTokens", concatenated("few.bin"), kBad, "BAD_FILE", "spec.datasets: dataset has 64 tokens, batch needs 65"},
      {"NoTargetInAWindow", concatenated("tail.bin"), kBad, "BAD_FILE",
       "spec.datasets: none of the 1000 tokens of 1 file is"},
      {"NoTargetOfAny",
       [](auto* s) {
         s->set_packing(v1::WINDOW_PACKING_CONCATENATE);
         s->set_datasets(0, "untrained.bin");
         s->add_datasets("tail.bin");
       },
       kBad, "BAD_FILE", "spec.datasets: none of the 2000 tokens of 2 files is a target"},
  };
}

std::vector<BadSpec> BadTexts() {
  const auto data = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_datasets(0, path); }; };
  return {
      {"EmptyText", data("empty.jsonl"), kBad, "BAD_FILE", "spec.datasets[0]: empty.jsonl: has no documents"},
      {"BlankText", data("blank.jsonl"), kBad, "BAD_FILE", "spec.datasets[0]: blank.jsonl: has no documents"},
      {"BrokenLine", data("broken.jsonl"), kBad, "BAD_FILE", "spec.datasets[0]: broken.jsonl:4 (byte 30): "},
      {"BrokenLineFarAway", data("far.jsonl"), kBad, "BAD_FILE", "spec.datasets[0]: far.jsonl:200001 (byte 3000000): "},
      {"BrokenEvaluation", [](auto* s) { s->add_evaluation("broken.jsonl"); }, kBad, "BAD_FILE",
       "spec.evaluation[0]: broken.jsonl:4 (byte 30): "},
      {"CompressedText", data("zip.jsonl"), kBad, "BAD_FILE", "spec.datasets[0]: zip.jsonl: is compressed (gzip)"},
      {"ConversationWithoutTemplate", data("chat.jsonl"), kCannot, "NO_CHAT_TEMPLATE",
       "spec.datasets[0]: chat.jsonl:1 (byte 0): messages: "},
  };
}

std::vector<BadSpec> BadPairs() {
  const auto data = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_datasets(0, path); }; };
  return {
      {"PairsWithoutDpo", data("pairs.jsonl"), kBad, "BAD_FILE",
       "spec.datasets[0]: pairs.jsonl:1 (byte 0): chosen, rejected: a pair of answers is for a job with dpo"},
      {"PackedPairsWithoutDpo", data("pairs.bin"), kBad, "BAD_FILE",
       "spec.datasets[0]: \"pairs.bin\": has pairs of answers, which only a job with dpo trains on (--dpo_beta)"},
      {"TextWithDpo", Preferring("sub/text.jsonl"), kBad, "BAD_FILE",
       "spec.datasets[0]: sub/text.jsonl:1 (byte 0): has no chosen and rejected"},
      {"TokensWithDpo", Preferring("a.bin"), kBad, "BAD_FILE",
       "spec.datasets[0]: \"a.bin\": has no pairs of answers, which a job with dpo wants"},
      {"EvaluationWithDpo",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->add_evaluation("a.bin");
       },
       kBad, "BAD_FILE", "spec.evaluation[0]: \"a.bin\": has no pairs of answers"},
      {"BadPair", Preferring("pair.jsonl"), kBad, "BAD_FILE",
       "spec.datasets[0]: pair.jsonl:2 (byte 48): rejected: is missing"},
      {"PairsThatDoNotFit", Preferring("pairs.bin"), kBad, "BAD_FILE",
       "spec.datasets: none of the pairs of answers in 1 file fits into sequence_length 16"},
      {"PairsOfAWeightThatDoNotFit",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->add_datasets("pairs.bin");
         for (int i = 0; i < 2; ++i) s->add_dataset_weights(1);
       },
       kBad, "BAD_FILE", "spec.datasets[1]: \"pairs.bin\" has a weight, but none of its pairs of answers fits into"},
  };
}

std::vector<BadSpec> BadModels() {
  const auto model = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_architecture(path); }; };
  return {
      {"ModelAbsolute", model("/etc"), kBad, "BAD_FIELD", "path must be under the checkpoint root: it is absolute"},
      {"ModelUrl", model("https://x/y"), kBad, "BAD_FIELD", "path must be under the checkpoint root: it is a URL"},
      {"ModelHome", model("~"), kBad, "BAD_FIELD", "it begins with ~"},
      {"TwoModels", [](auto* s) { s->set_base_checkpoint("demo"); }, kBad, "BAD_FIELD", "exactly one is wanted"},
      {"NoModel", model("none"), kNone, "BAD_FILE", "spec.architecture: \"none\": not in the checkpoint root"},
      {"ModelIsAFile", model("file"), kBad, "BAD_FILE", "spec.architecture: \"file\": not a folder"},
      {"ModelOut", model("out"), kBad, "BAD_FILE", "path must be under the checkpoint root"},
      {"NoConfig", model("empty"), kNone, "BAD_FILE", "config.json"},
      {"ConfigNoJson", model("nojson"), kBad, "BAD_FILE", "config.json: is no JSON object"},
      {"ConfigDeep", model("deep"), kBad, "BAD_FILE", "config.json: 101 levels and "},
      {"ConfigManyKeys", model("keys"), kBad, "BAD_FILE", "keys, at most 64 and 4096"},
      {"ConfigLarge", model("large"), kBad, "BAD_FILE", "config.json"},
      {"UnknownModel", model("llama"), kBad, "BAD_FILE",
       "\"LlamaForCausalLM\" is unknown; known are Gpt2MoeForCausalLM, Mixtral"},
      {"BaseWithoutWeights",
       [](auto* s) {
         s->clear_architecture();
         s->set_base_checkpoint("demo");
       },
       kNone, "BAD_FILE", "spec.base_checkpoint: \"demo\": has neither model.safetensors"},
      {"LongSequence", [](auto* s) { s->set_sequence_length(65); }, kBad, "BAD_FIELD",
       "spec.sequence_length: 65 is beyond the model's context of 64"},
      {"NoRouterBias", [](auto* s) { s->set_balance_bias_rate(1e-3); }, kBad, "BAD_FIELD",
       "spec.balance_bias_rate: 0.001, but this MixtralForCausalLM has no router bias"},
      {"MoreWorkersThanExperts", model("single"), kBad, "BAD_FIELD",
       "2 workers, but a layer has 1 expert, and each worker needs at least one of them; at most 1 worker"},
      {"TextWithoutTokenizer",
       [](auto* s) {
         s->set_architecture("mute");
         s->set_datasets(0, "sub/text.jsonl");
       },
       kCannot, "NO_TOKENIZER", "has no tokenizer.json"},
      {"NoRoom", model("huge"), kCannot, "DISK_FULL", "bytes are free in the checkpoint root"},
      {"NoRoomForDenseLayers", model("dense"), kCannot, "DISK_FULL", "bytes are free in the checkpoint root"},
  };
}

// Two documents of a token each.
std::string PairFileBytes() {
  const std::string header =
      jobs::EncodeTokenHeader({.vocab_size = 300, .num_tokens = 2, .num_documents = 2, .pairs = true, .contents = 1});
  return header + std::string(8, '\0') + std::string(8, '\0') + "\1" + std::string(7, '\0');
}

// The folder `data` ends in a slash, here and below.
void MakeLinksAndDevices(const std::string& data) {
  std::ofstream(data + "../secret.bin") << TokenFileBytes(1000);
  ASSERT_EQ(symlink("../secret.bin", (data + "out.bin").c_str()), 0);
  ASSERT_EQ(symlink("..", (data + "away").c_str()), 0);
  ASSERT_EQ(symlink("/dev/null", (data + "null.bin").c_str()), 0);
  ASSERT_EQ(mkfifo((data + "fifo.bin").c_str(), 0600), 0);
  ASSERT_EQ(mknod((data + "socket.bin").c_str(), S_IFSOCK | 0600, 0), 0);
  std::filesystem::create_directories(data + "folder.bin");
}

void MakeTexts(const std::string& data) {
  std::ofstream(data + "empty.jsonl").close();
  std::ofstream(data + "blank.jsonl") << "\n \n";
  std::ofstream(data + "broken.jsonl") << "{\"text\": \"a\"}\n\n{\"text\": \"bc\"}\n{\"text\": \n";
  std::ofstream far(data + "far.jsonl");
  for (int i = 0; i < 200'000; ++i) far << "{\"text\": \"ab\"}\n";
  far << "{}\n";
  far.close();
  std::ofstream(data + "zip.jsonl") << "\x1f\x8b";
  const std::string pair = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  std::ofstream(data + "pairs.jsonl") << pair << "\n";
  std::ofstream(data + "pair.jsonl") << pair << "\n"
                                     << R"({"prompt": "a", "chosen": "b"})"
                                     << "\n";
  std::ofstream(data + "chat.jsonl") << R"({"messages": [{"role": "user", "content": "a"}, )"
                                     << R"({"role": "assistant", "content": "b"}]})";
}

void MakeTokenFiles(const std::string& data) {
  std::ofstream(data + "empty.bin").close();
  std::ofstream(data + "untrained.bin") << MaskedFileBytes(1000);
  std::ofstream(data + "tail.bin") << MaskedFileBytes(1000, 993);  // 62 windows of 16 end with token 992
  std::ofstream(data + "magic.bin") << std::string(4096, 'x');
  std::ofstream(data + "short.bin") << TokenFileBytes(1000).substr(0, 500);
  std::ofstream(data + "sparse.bin") << TokenFileBytes(1000);
  ASSERT_EQ(truncate((data + "sparse.bin").c_str(), off_t{1} << 40), 0);
  const auto with = [&](const std::string& name, size_t at, const std::string& bytes) {
    std::ofstream(data + name) << TokenFileBytes(1000).replace(at, bytes.size(), bytes);
  };
  with("version.bin", 8, "\2");
  with("endian.bin", 8, std::string("\0\0\0\1", 4));
  with("header.bin", 60, "x");
  std::ofstream(data + "length.bin") << jobs::EncodeTokenHeader(
      {.vocab_size = 300, .num_tokens = std::numeric_limits<int64_t>::max(), .num_documents = 1});
  std::ofstream(data + "vocab.bin") << TokenFileBytes(1000, 301);
  // Its header says that all are below 300.
  with("outside.bin", 72 + 2 * 999, "\x2c\x01");
  std::string llmc(1024, '\0');
  const int32_t first[] = {20240520, 1, 1000};
  std::memcpy(llmc.data(), first, sizeof(first));
  std::ofstream(data + "llmc.bin") << llmc + std::string(2000, '\0').replace(14, 2, "\xff\xff");
  std::ofstream(data + "few.bin") << TokenFileBytes(64);
  std::ofstream(data + "pairs.bin") << PairFileBytes();
}

void MakeModels(const std::string& models) {
  std::filesystem::copy(models + "demo", models + "based");
  std::ofstream(models + "based/model.safetensors").close();
  ASSERT_EQ(symlink("..", (models + "out").c_str()), 0);
  std::ofstream(models + "file").close();
  const auto make = [&](const std::string& name, const std::string& from, const std::string& to) {
    std::filesystem::create_directories(models + name);
    std::string config = kTinyConfig;
    ASSERT_NE(config.find(from), std::string::npos);
    std::ofstream(models + name + "/config.json") << config.replace(config.find(from), from.size(), to);
  };
  std::filesystem::create_directories(models + "empty");
  make("nojson", "{", "[");
  make("llama", "Mixtral", "Llama");
  make("single", "_experts\": 4, \"num_experts_per_tok\": 2", "_experts\": 1, \"num_experts_per_tok\": 1");
  make("mute", "300", "300");
  // More dense parameters than 64 bits can count.
  make("dense", "\"intermediate_size\": 16",
       "\"intermediate_size\": 4294967296, \"num_hidden_layers\": 4294967296, \"head_dim\": 0, "
       "\"decoder_sparse_step\": 0, \"moe_intermediate_size\": 1");
  make("deep", "\"hidden_size\"", "\"x\": " + std::string(100, '[') + std::string(100, ']') + ", \"hidden_size\"");
  std::string keys;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&keys, "\"k", i, "\": 0, ");
  make("keys", "\"hidden_size\"", keys + "\"hidden_size\"");
  make("large", "\"hidden_size\"", "\"x\": \"" + std::string(2 << 20, 'x') + "\", \"hidden_size\"");
  make("huge", "\"intermediate_size\": 16", "\"intermediate_size\": 4000000000");
}

TEST_F(BadSpecsTest, EachFileIsRefusedWithItsReason) {
  const std::string data = base_.path() + "/data/";
  MakeLinksAndDevices(data);
  MakeTexts(data);
  MakeTokenFiles(data);
  MakeModels(base_.path() + "/models/");
  std::vector<BadSpec> catalogue = BadFiles();
  for (const auto& more : {BadWindows(), BadTexts(), BadPairs(), BadModels()})
    catalogue.insert(catalogue.end(), more.begin(), more.end());
  ExpectEachIsRefused(catalogue);
}

TEST_F(BadSpecsTest, OneTargetIsEnough) {
  std::ofstream(base_.path() + "/data/none.bin") << MaskedFileBytes(1000);
  std::ofstream(base_.path() + "/data/one.bin") << MaskedFileBytes(1000, 992);
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_datasets(0, "none.bin");
  request.mutable_spec()->add_datasets("one.bin");
  request.mutable_spec()->add_evaluation("one.bin");
  SubmitOk(request);
}

}  // namespace
}  // namespace switchyard::server
