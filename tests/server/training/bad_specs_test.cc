// The catalogue of bad specs: each with its code, its reason and its message.
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "gmock/gmock.h"
#include "tests/server/training/training_fixture.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

struct BadSpec {
  std::string name;
  std::function<void(v1::JobSpec*)> spoil;
  grpc::StatusCode code;
  std::string reason;
  std::string message;  // a part of it
};

constexpr auto kBad = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kNone = grpc::StatusCode::NOT_FOUND;
constexpr auto kCannot = grpc::StatusCode::FAILED_PRECONDITION;

std::vector<BadSpec> BadNumbers() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"RateNaN", [=](auto* s) { s->mutable_optimizer()->set_learning_rate(nan); }, kBad, "BAD_FIELD", "optimizer"},
      {"RateZero", [](auto* s) { s->mutable_optimizer()->set_learning_rate(0); }, kBad, "BAD_FIELD", "optimizer"},
      {"NoSteps", [](auto* s) { s->set_steps(0); }, kBad, "BAD_FIELD", "steps: 0 is outside [1, "},
      {"TooManySteps", [](auto* s) { s->set_steps((int64_t{1} << 53) + 1); }, kBad, "BAD_FIELD", "steps: "},
      {"BatchNotInParts", [](auto* s) { s->set_batch_sequences(3); }, kBad, "BAD_FIELD",
       "batch_sequences: 3 cannot be dealt out to 2 workers"},
      {"SaveNever", [](auto* s) { s->mutable_checkpoints()->set_every_steps(0); }, kBad, "BAD_FIELD",
       "checkpoints.every_steps: 0 is outside"},
      {"TooManyWorkers", [](auto* s) { s->set_workers(4); }, kCannot, "TOO_FEW_WORKERS",
       "needs 4 ranks, 0 alive, 2 configured"},
      {"UnknownPrecision", [](auto* s) { s->set_precision(static_cast<v1::TrainPrecision>(7)); }, kBad, "BAD_FIELD",
       "spec.precision: value 7"},
      {"UnknownField", [](auto* s) { s->GetReflection()->MutableUnknownFields(s)->AddVarint(99, 1); }, kBad,
       "BAD_FIELD", "spec: field 99 is not known"},
      {"UnknownMode", [](auto* s) { s->mutable_communication()->set_mode("fullest"); }, kBad, "BAD_FIELD",
       "\"fullest\" is no mode; must be one of fair, "},
      {"SmallPieces", [](auto* s) { s->mutable_communication()->set_piece_bytes(1023); }, kBad, "BAD_FIELD",
       "communication.piece_bytes: 1023 is outside [1024, "},
      {"CapacityNegative", [](auto* s) { s->set_capacity_factor(-1); }, kBad, "BAD_FIELD",
       "capacity_factor (0 = no row is dropped): -1 is outside [0.1, "},
      {"CapacityNaN", [=](auto* s) { s->set_capacity_factor(nan); }, kBad, "BAD_FIELD", "dropped): nan is outside"},
      {"CapacityTooSmall", [](auto* s) { s->set_capacity_factor(1e-6); }, kBad, "BAD_FIELD", "1e-06 is outside [0.1, "},
      {"BiasRateNegative", [](auto* s) { s->set_balance_bias_rate(-1e-3); }, kBad, "BAD_FIELD",
       "balance_bias_rate: -0.001 is outside [0, 1)"},
      {"BiasRateNaN", [=](auto* s) { s->set_balance_bias_rate(nan); }, kBad, "BAD_FIELD", "balance_bias_rate: nan"},
      {"TwoModels", [](auto* s) { s->set_base_checkpoint("demo"); }, kBad, "BAD_FIELD", "exactly one is wanted"},
      {"NoData", [](auto* s) { s->clear_datasets(); }, kBad, "BAD_FIELD", "datasets: none"},
  };
}

std::vector<BadSpec> BadFiles() {
  const auto data = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_datasets(0, path); }; };
  const auto model = [](const char* path) { return [path](v1::JobSpec* spec) { spec->set_architecture(path); }; };
  return {
      {"Absolute", data("/etc/passwd.bin"), kBad, "BAD_FIELD", "path must be under the dataset root: it is absolute"},
      {"DotDot", data("../models/x.bin"), kBad, "BAD_FIELD", "path must be under the dataset root"},
      {"Home", data("~/x.bin"), kBad, "BAD_FIELD", "path must be under the dataset root"},
      {"Url", data("http://x/y.bin"), kBad, "BAD_FIELD", "it is a URL"},
      {"Nul", [](auto* s) { s->set_datasets(0, std::string("a\0.bin", 6)); }, kBad, "BAD_FIELD", "it has a NUL"},
      {"Long", [](auto* s) { s->set_datasets(0, std::string(5000, 'x') + ".bin"); }, kBad, "BAD_FIELD", "at most 4096"},
      {"OtherKind", data("a.gz"), kBad, "BAD_FIELD", "ends neither in .jsonl nor in .bin"},
      {"Missing", data("none.bin"), kNone, "BAD_FILE", "spec.datasets[0]: \"none.bin\": not in the dataset root"},
      {"LinkOut", data("out.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"out.bin\": path must be under"},
      {"Fifo", data("fifo.bin"), kBad, "BAD_FILE", "not a regular file"},
      {"Folder", data("folder.bin"), kBad, "BAD_FILE", "not a regular file"},
      {"Empty", data("empty.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"empty.bin\": "},
      {"WrongMagic", data("magic.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"magic.bin\": "},
      {"Truncated", data("short.bin"), kBad, "BAD_FILE", "spec.datasets[0]: \"short.bin\": "},
      {"OtherVocabulary", data("vocab.bin"), kBad, "BAD_FILE", "made for a vocabulary of 301, the model has 300"},
      {"FewTokens", data("few.bin"), kBad, "BAD_FILE", "spec.datasets: dataset has 64 tokens, batch needs 65"},
      {"BadEvaluation", [](auto* s) { s->add_evaluation("none.jsonl"); }, kNone, "BAD_FILE", "spec.evaluation[0]"},
      {"NoModel", model("none"), kNone, "BAD_FILE", "spec.architecture: \"none\": not in the checkpoint root"},
      {"ModelIsAFile", model("file"), kBad, "BAD_FILE", "spec.architecture: \"file\": not a folder"},
      {"ModelOut", model("out"), kBad, "BAD_FILE", "path must be under the checkpoint root"},
      {"NoConfig", model("empty"), kNone, "BAD_FILE", "config.json"},
      {"ConfigNoJson", model("nojson"), kBad, "BAD_FILE", "config.json: is no JSON object"},
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
      {"ExpertsNotInParts", model("odd"), kBad, "BAD_FIELD", "5 experts cannot be dealt out to 2 workers"},
      {"TextWithoutTokenizer",
       [](auto* s) {
         s->set_architecture("mute");
         s->set_datasets(0, "sub/text.jsonl");
       },
       kCannot, "NO_TOKENIZER", "has no tokenizer.json"},
      {"NoRoom", model("huge"), kCannot, "DISK_FULL", "bytes are free in the checkpoint root"},
  };
}

class BadSpecsTest : public TrainingTest {
 protected:
  void MakeFiles() {
    const std::string data = base_.path() + "/data/", models = base_.path() + "/models/";
    std::ofstream(base_.path() + "/secret.bin") << TokenFileBytes(1000);
    ASSERT_EQ(symlink("../secret.bin", (data + "out.bin").c_str()), 0);
    ASSERT_EQ(mkfifo((data + "fifo.bin").c_str(), 0600), 0);
    std::filesystem::create_directories(data + "folder.bin");
    std::ofstream(data + "empty.bin").close();
    std::ofstream(data + "magic.bin") << std::string(4096, 'x');
    std::ofstream(data + "short.bin") << TokenFileBytes(1000).substr(0, 500);
    std::ofstream(data + "vocab.bin") << TokenFileBytes(1000, 301);
    std::ofstream(data + "few.bin") << TokenFileBytes(64);
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
    make("odd", "_experts\": 4", "_experts\": 5");
    make("mute", "300", "300");
    make("huge", "\"intermediate_size\": 16", "\"intermediate_size\": 4000000000");
  }
};

TEST_F(BadSpecsTest, EachIsRefusedWithItsReason) {
  MakeFiles();
  std::vector<BadSpec> catalogue = BadNumbers();
  for (const BadSpec& bad : BadFiles()) catalogue.push_back(bad);
  for (const BadSpec& bad : catalogue) {
    v1::SubmitJobRequest request = Request();
    bad.spoil(request.mutable_spec());
    v1::SubmitJobResponse response;
    const grpc::Status status = Submit(request, &response);
    EXPECT_EQ(status.error_code(), bad.code) << bad.name << ": " << status.error_message();
    EXPECT_EQ(ViewError(status).reason, bad.reason) << bad.name;
    EXPECT_THAT(status.error_message(), HasSubstr(bad.message)) << bad.name;
  }
  v1::ListJobsResponse jobs;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListJobs(&context, v1::ListJobsRequest(), &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0) << "none of them was taken";
}

TEST_F(BadSpecsTest, AllProblemsOfASpecAtOnce) {
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_steps(0);
  request.mutable_spec()->set_datasets(0, "/x.bin");
  v1::SubmitJobResponse response;
  const std::string message = Submit(request, &response).error_message();
  EXPECT_THAT(message, HasSubstr("steps: "));
  EXPECT_THAT(message, HasSubstr("datasets[0]: "));
}

TEST_F(BadSpecsTest, BadRequests) {
  v1::SubmitJobResponse response;
  v1::SubmitJobRequest request = Request();
  request.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(Submit(request, &response).error_message(), HasSubstr("request_id: 129 bytes, at most 128"));
  request.set_request_id("a\nb");
  EXPECT_THAT(Submit(request, &response).error_message(), HasSubstr("do not print"));
  EXPECT_THAT(Submit(v1::SubmitJobRequest(), &response).error_message(), HasSubstr("spec: is missing"));
  grpc::ClientContext context;
  v1::GetJobResponse job;
  v1::GetJobRequest get;
  EXPECT_EQ(stub_->GetJob(&context, get, &job).error_code(), kBad);
  get.set_id("job-none");
  grpc::ClientContext other;
  const grpc::Status none = stub_->GetJob(&other, get, &job);
  EXPECT_EQ(none.error_code(), kNone);
  EXPECT_EQ(ViewError(none).reason, "JOB_NOT_FOUND");
  request = Request();
  request.set_request_id("r");
  ASSERT_TRUE(Submit(request, &response).ok());
  request.mutable_spec()->set_seed(9);
  const grpc::Status twice = Submit(request, &response);
  EXPECT_EQ(twice.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(ViewError(twice).reason, "JOB_EXISTS");
  // What was asked for before is found, whatever became of its files.
  std::filesystem::remove(base_.path() + "/data/a.bin");
  request.mutable_spec()->set_seed(0);
  ASSERT_TRUE(Submit(request, &response).ok());
  EXPECT_TRUE(response.existed());
}

}  // namespace
}  // namespace switchyard
