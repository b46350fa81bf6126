// The server's flags and configuration: every problem is reported at once.
#include "server/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/server_flags.h"
#include "server/text/generation_config.h"
#include "tests/server/config_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST_F(ConfigTest, DerivesNamesAndWorkers) {
  config_.model += "/";
  config_.local_workers = 2;
  ASSERT_TRUE(config_.Finish().ok()) << config_.Finish();
  EXPECT_EQ(config_.served_model_name, dir_.path().substr(dir_.path().find_last_of('/') + 1));
  EXPECT_EQ(config_.workers, 2);
  EXPECT_GE(config_.threads, 1);
}

// A flag's mark suffices to pass it on.
TEST(ServerFlagsTest, MarkedOnesGoToLocalWorkers) {
  ServerConfig config;
  FlagSet flags = FlagsOfServer(&config);
  const std::vector<std::string> args = {"--dtype=bf16",         "--gpu_memory_fraction=0.12345678901234",
                                         "--insecure",           "--expert_budget=25%",
                                         "--dataset_root=/data", "--placement=agreed"};
  EXPECT_TRUE(flags.Parse(args).empty());
  EXPECT_EQ(config.placement.mode, placement::PlacementMode::kAgreed);
  EXPECT_THAT(FlagsToWorkers(config, kToServingWorkers),
              testing::AllOf(testing::IsSupersetOf({"--dtype=bf16", "--gpu_memory_fraction=0.12345678901234",
                                                    "--insecure=true", "--expert_memory=25%", "--cuda_graphs=true"}),
                             testing::Not(testing::Contains("--dataset_root=/data")),
                             testing::Not(testing::Contains("--placement=agreed"))));
  EXPECT_THAT(FlagsToWorkers(config, kToTrainingWorkers),
              testing::ElementsAre("--insecure=true", "--metrics_host=127.0.0.1", "--dataset_root=/data",
                                   "--checkpoint_root=", "--train_offload_dir="));
}

TEST(ServerFlagsTest, AnUnknownPlacementIsNamedWithThoseThatThereAre) {
  ServerConfig config;
  FlagSet flags = FlagsOfServer(&config);
  const std::vector<std::string> args = {"--placement=best"};
  const std::vector<FlagProblem> problems = flags.Parse(args);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].ToString(), absl::StrCat("--placement=best: must be one of ", placement::PlacementModeNames()));
}

TEST_F(ConfigTest, TrainingIsChecked) {
  const model::TempDir other;
  for (const char* name : {"/data", "/models", "/data/inner"}) std::filesystem::create_directory(dir_.path() + name);
  const auto problem = [this](const std::function<void(ServerConfig*)>& edit) {
    ServerConfig config = config_;
    config.local_train_workers = 2;
    config.dataset_root = dir_.path() + "/data";
    config.checkpoint_root = dir_.path() + "/models";
    edit(&config);
    return std::string(config.Finish().message());
  };
  EXPECT_EQ(problem([](ServerConfig*) {}), "");
  {
    ServerConfig config = config_;
    config.local_train_workers = 3;
    config.dataset_root = dir_.path() + "/data";
    config.checkpoint_root = dir_.path() + "/models";
    ASSERT_TRUE(config.Finish().ok());
    EXPECT_EQ(config.train_workers, 3);
    EXPECT_GE(config.train_threads, 1);
  }
  EXPECT_THAT(problem([](ServerConfig* c) { c->local_train_workers = 65; }), HasSubstr("--local_train_workers=65"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->train_workers = -1; }), HasSubstr("--train_workers=-1"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->train_workers = 1; }),
              HasSubstr("--train_workers=1: fewer than --local_train_workers=2"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->train_threads = 1025; }), HasSubstr("--train_threads=1025"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->dataset_root = ""; }), HasSubstr("--dataset_root: missing"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->checkpoint_root = ""; }), HasSubstr("--checkpoint_root: missing"));
  EXPECT_THAT(problem([](ServerConfig* c) { c->dataset_root += "/nowhere"; }), HasSubstr("--dataset_root: "));
  // Serving does not depend on the disk of jobs.
  EXPECT_EQ(problem([](ServerConfig* c) { c->checkpoint_root += "/nowhere"; }), "");
  EXPECT_THAT(problem([](ServerConfig* c) { c->dataset_root = c->checkpoint_root + "/../models/"; }),
              HasSubstr(" is the same folder as --checkpoint_root="));
  EXPECT_THAT(problem([](ServerConfig* c) { c->checkpoint_root = c->dataset_root + "/inner"; }),
              HasSubstr("/data holds --checkpoint_root="));
  std::filesystem::create_directory_symlink(dir_.path() + "/models", other.path() + "/link");
  std::filesystem::create_directory(dir_.path() + "/models/text");
  EXPECT_THAT(problem([&](ServerConfig* c) { c->dataset_root = other.path() + "/link/text"; }),
              HasSubstr("/link/text is in --checkpoint_root="));
  EXPECT_EQ(problem([&](ServerConfig* c) { c->train_offload_dir = other.path(); }), "");
  EXPECT_THAT(problem([](ServerConfig* c) { c->train_offload_dir = "/nowhere"; }),
              HasSubstr("--train_offload_dir=/nowhere: no such directory"));
  EXPECT_THAT(problem([&](ServerConfig* c) {
                c->train_offload_dir = other.path();
                c->local_train_workers = 0;
                c->train_workers = 1;
              }),
              HasSubstr("is for local training workers"));
}

TEST_F(ConfigTest, AllProblemsAreReportedAtOnce) {
  config_.model = dir_.path() + "/nowhere";
  config_.tokenizer = "missing.json";
  config_.chat_template = "missing.jinja";
  config_.port = 65536;
  config_.metrics_port = -2;
  config_.host = "0.0.0.0";
  config_.workers = 1;
  config_.local_workers = 2;
  config_.dtype = "int3";
  config_.threads = -1;
  config_.kv_cache_bytes = -1;
  config_.max_streams = 0;
  config_.batching.block_size = 0;
  config_.batching.max_queue = -7;
  config_.batching.max_num_seqs = 5;
  config_.batching.max_batched_tokens = 3;
  config_.metrics_host = "10.0.0.1";
  config_.slow_client_timeout = -absl::Seconds(1);
  config_.max_deadline = absl::InfiniteDuration();
  config_.start_timeout = absl::ZeroDuration();
  config_.drain_timeout = -absl::Seconds(2);
  config_.step_timeout = absl::Hours(2000);
  const absl::Status status = config_.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string text(status.message());
  for (const char* part :
       {"nowhere: no such directory",
        "--tokenizer=missing.json: no such file",
        "--chat_template=missing.jinja",
        "--port=65536: must be within [0, 65535]",
        "--metrics_port=-2",
        "wants --insecure",
        "--workers=1: fewer than --local_workers=2",
        "--dtype=int3: must be one of",
        "--threads=-1",
        "--kv_cache_bytes=-1",
        "--max_streams=0",
        "block_size=0",
        "max_queue=-7",
        "max_batched_tokens=3 must be at least max_num_seqs=5",
        "--metrics_host=10.0.0.1: plaintext on another address than loopback wants --insecure; or give --tls_cert",
        "--slow_client_timeout=-1s: must be within [1ms, 1000h]",
        "--max_deadline=inf: must be",
        "--start_timeout=0: must be",
        "--drain_timeout=-2s: must be",
        "--step_timeout=2000h: must be"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST_F(ConfigTest, WhatIsThereButNoRegularFileIsCalledSo) {
  const std::string fifo = dir_.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  config_.tokenizer = fifo;
  config_.chat_template = dir_.path();
  EXPECT_EQ(std::string(config_.Finish().message()),
            absl::StrCat("--tokenizer=", fifo, ": not a regular file\n--chat_template=", dir_.path(),
                         ": not a regular file"));
}

TEST_F(ConfigTest, TheModelMustBeACheckpoint) {
  ServerConfig none;
  EXPECT_THAT(std::string(none.Finish().message()), HasSubstr("--model: missing"));
  model::TempDir empty;
  config_.model = empty.path();
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("has no config.json"));
}

TEST_F(ConfigTest, AnAdapterIsOfLocalWorkers) {
  config_.adapter = dir_.path();
  config_.local_workers = 0;
  config_.workers = 2;
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr(": is of local workers, but --local_workers=0"));
}

TEST_F(ConfigTest, AdaptersAreNamedFoldersOfLocalWorkersOnCpus) {
  const std::string dir = "tests/golden/adapters/lora-olmoe-clip";
  const auto refusal = [&](const std::string& adapters) {
    config_.adapters = adapters;
    return std::string(config_.Finish().message());
  };
  EXPECT_EQ(refusal(absl::StrCat("a=", dir, ",b=", dir)), "");
  EXPECT_THAT(refusal("a"), HasSubstr("--adapters=a: \"a\": is no NAME=DIR"));
  EXPECT_THAT(refusal("a:b=x"), HasSubstr("adapter name \"a:b\": must be of letters"));
  EXPECT_THAT(refusal("a=/nonexistent"),
              HasSubstr("--adapters: a=/nonexistent: is no directory with an adapter_config"));
  config_.adapter = dir;
  EXPECT_THAT(refusal(absl::StrCat("a=", dir)), HasSubstr(absl::StrCat(": goes with no --adapter=", dir)));
  config_.adapter.clear();
  config_.load_format = "dummy";
  EXPECT_THAT(refusal(absl::StrCat("a=", dir)), HasSubstr(": goes with no --load_format=dummy"));
  config_.load_format = "auto";
  config_.device = "cuda";
  EXPECT_THAT(refusal(absl::StrCat("a=", dir)), HasSubstr("is for workers on CPUs so far, not --device=cuda"));
  config_.device = "cpu";
  config_.local_workers = 0;
  config_.workers = 2;
  EXPECT_THAT(refusal(absl::StrCat("a=", dir)), HasSubstr(": is of local workers, but --local_workers=0"));
}

TEST_F(ConfigTest, AServerWithoutAModelTrains) {
  ServerConfig config;
  config.dataset_root = dir_.path() + "/data";
  config.checkpoint_root = dir_.path() + "/models";
  for (const std::string& root : {config.dataset_root, config.checkpoint_root}) std::filesystem::create_directory(root);
  config.local_train_workers = 2;
  ServerConfig serving = config;
  ASSERT_TRUE(config.Finish().ok()) << config.Finish();
  EXPECT_TRUE(config.only_trains);
  EXPECT_EQ(config.workers, 0);
  EXPECT_EQ(config.local_workers, 0);
  EXPECT_EQ(config.served_model_name, "");
  serving.workers = serving.local_workers = 2;
  serving.tokenizer = "t.json";
  serving.adapter = "a";
  serving.adapters = "b=c";
  serving.quantization = "int8";
  serving.train_on_serving = true;
  EXPECT_THAT(std::string(serving.Finish().message()),
              testing::AllOf(HasSubstr("--local_workers=2: is for a server with --model\n--workers=2: is for"),
                             HasSubstr("--tokenizer=t.json: is for a server with --model"),
                             HasSubstr("--adapter=a: is for a server with --model"),
                             HasSubstr("--adapters=b=c: is for a server with --model"),
                             HasSubstr("--quantization=int8: is for a server with --model"),
                             HasSubstr("--train_on_serving: is for a server with --model")));
}

TEST_F(ConfigTest, WhatOnlyGpusHaveIsNotSaidOfCpus) {
  config_.gpu_memory_fraction = 0.5;
  config_.deterministic = true;
  config_.cuda_graphs = false;
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--gpu_memory_fraction=0.5: is for GPUs, but --device=cpu\n--deterministic: is for GPUs, but --device=cpu\n"
            "--cuda_graphs=false: is for GPUs, but --device=cpu");
  config_.device = "cuda";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
}

TEST_F(ConfigTest, SlicesForTrainingAreOfServingWorkersOnTheCpu) {
  config_.train_yield_ms = 20;
  config_.train_share = 0.5;
  const std::string without(config_.Finish().message());
  EXPECT_THAT(without, HasSubstr("--train_yield_ms=20: is for --train_on_serving"));
  EXPECT_THAT(without, HasSubstr("--train_share=0.5: is for --train_on_serving"));
  config_.train_on_serving = true;
  const std::string without_roots(config_.Finish().message());
  EXPECT_THAT(without_roots, HasSubstr("--dataset_root: missing"));
  EXPECT_THAT(without_roots, HasSubstr("--checkpoint_root: missing"));
  config_.dataset_root = dir_.path() + "/datasets";
  config_.checkpoint_root = dir_.path() + "/checkpoints";
  for (const std::string& root : {config_.dataset_root, config_.checkpoint_root}) {
    ASSERT_TRUE(std::filesystem::create_directory(root));
  }
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.train_yield_ms = 0;
  config_.train_share = 0.91;
  config_.device = "cuda";
  const std::string wrong(config_.Finish().message());
  EXPECT_THAT(wrong, HasSubstr("--train_yield_ms=0: must be within [1, 10000]"));
  EXPECT_THAT(wrong, HasSubstr("--train_share=0.91: must be within [0, 0.9]"));
  EXPECT_THAT(wrong, HasSubstr("--train_on_serving: training is on the CPU, but --device=cuda"));
}

TEST_F(ConfigTest, AnExpertBudgetIsAShareOrBytes) {
  for (const char* device : {"cpu", "cuda"}) {
    config_.device = device;
    for (const char* budget : {"25%", "100%", "8000000000", "6GiB"}) {
      config_.experts.budget = budget;
      EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
    }
  }
  config_.experts.budget = "0%";
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--expert_memory=0%: must be a share within (0%, 100%], or bytes, at least 1, as 6000000000 or 6GiB");
  config_.experts.budget = "auto";
  EXPECT_THAT(std::string(config_.Finish().message()),
              HasSubstr("--expert_memory=auto: is for CPUs; give a share or a size"));
  config_.device = "cpu";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
}

// Values that a local worker would refuse at each start are refused here.
TEST_F(ConfigTest, WhatWorkersRefuseOfExpertsIsRefused) {
  config_.experts.policy = "lru";
  EXPECT_EQ(std::string(config_.Finish().message()), "--expert_policy=lru: is for --expert_memory, which is not given");
  config_.experts.budget = "50%";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.experts.policy = "best";
  config_.experts.copy_bytes_per_second = -1;
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--expert_policy=best: must be auto or lru\n"
            "--expert_copy_bytes_per_second=-1: must not be negative or endless");
  config_.experts = {};
  config_.experts.weights_us = -1;
  config_.experts.row_us = std::numeric_limits<double>::infinity();
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--expert_weights_us=-1: must not be negative or endless\n"
            "--expert_row_us=inf: must not be negative or endless");
  config_.experts = {};
  config_.experts.copy_bytes_per_second = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("must not be negative"));
}

TEST_F(ConfigTest, PlacementIsAutoWithoutSlots) {
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  EXPECT_EQ(config_.placement.mode, placement::PlacementMode::kAuto);
  EXPECT_FALSE(config_.placement.has_slots());
  config_.placement = {.mode = placement::PlacementMode::kAuto, .spare_slots = -1};
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--spare_slots=-1: must be within [0, 64]"));
}

TEST_F(ConfigTest, TheExpertFileIsOfABudgetOrAPlacement) {
  config_.experts.file_dir = "/elsewhere";
  config_.experts.copy_bytes_per_second = 1e9;
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--expert_file_dir=/elsewhere: is for --expert_memory, or for --spare_slots\n"
            "--expert_copy_bytes_per_second=1e+09: is for --expert_memory, or for --spare_slots");
  config_.experts.budget = "50%";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.experts.budget = "";
  config_.placement = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1};
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
}

TEST_F(ConfigTest, APlacementGoesWithAProfileOnEveryDeviceAndWithNoBudget) {
  for (const char* device : {"cpu", "cuda"}) {
    config_.device = device;
    config_.placement = {.mode = placement::PlacementMode::kAgreed, .spare_slots = 1};
    config_.profile_out = "learned";
    EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
    config_.experts.budget = "50%";
    EXPECT_EQ(std::string(config_.Finish().message()),
              "--expert_memory=50%: excludes --placement=agreed --spare_slots=1: a replica would take the room of "
              "another expert");
    config_.experts.budget = "";
  }
  config_.placement = {.mode = placement::PlacementMode::kStatic, .spare_slots = 2};
  EXPECT_EQ(std::string(config_.Finish().message()), "--spare_slots=2: --placement=static has no replicas");
}

TEST_F(ConfigTest, AddedOutputsAreOfCpusAndExpertsThatStay) {
  config_.add_outputs = true;
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.placement = {.mode = placement::PlacementMode::kAuto, .spare_slots = 1};
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--combine=added with --spare_slots=1: an answer's roundings would follow the replicas");
  config_.placement = {};
  config_.device = "cuda";
  EXPECT_EQ(std::string(config_.Finish().message()), "--combine=added: for workers on CPUs, but --device=cuda");
}

TEST_F(ConfigTest, ColdExpertsOnTheHostAreOfGpusWithABudgetAndMayChangeBits) {
  config_.experts.cold = "host";
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--cold_experts=host: is for GPUs, but --device=cpu\n"
            "--cold_experts=host: is for --expert_memory, which is not given");
  config_.device = "cuda";
  config_.experts.budget = "25%";
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  config_.deterministic = true;
  EXPECT_EQ(std::string(config_.Finish().message()),
            "--cold_experts=host: bits depend on which experts are in slots then, which --deterministic forbids");
  config_.experts.cold = "elsewhere";
  EXPECT_EQ(std::string(config_.Finish().message()), "--cold_experts=elsewhere: must be copy or host");
}

TEST_F(ConfigTest, OneClientsShareIsHalfButOnLoopbackWhereAllLookAlike) {
  ServerConfig local = config_, network = config_, said = config_;
  network.host = "192.0.2.7";
  network.insecure = true;
  said.max_streams_per_client = 5;
  for (ServerConfig* config : {&local, &network, &said}) {
    config->max_streams = 100;
    config->max_connections = 60;
    ASSERT_TRUE(config->Finish().ok()) << config->Finish();
    EXPECT_EQ(config->max_connections_per_client, 30);
  }
  EXPECT_EQ(local.max_streams_per_client, 100);
  EXPECT_EQ(network.max_streams_per_client, 50);
  EXPECT_EQ(said.max_streams_per_client, 5);
}

TEST_F(ConfigTest, AModelIsCalledWhatItsDirectoryIsCalled) {
  namespace fs = std::filesystem;
  const fs::path root = dir_.path();
  fs::create_directories(root / "models" / "llm");
  EXPECT_EQ(NameOfModel(root / "models" / "llm"), "llm");
  EXPECT_EQ(NameOfModel((root / "models" / "llm").string() + "//"), "llm");
  EXPECT_EQ(NameOfModel(root / "models" / "llm" / "."), "llm");
  EXPECT_EQ(NameOfModel(root / "models" / "llm" / ".." / "llm/."), "llm");
  const fs::path before = fs::current_path();
  fs::current_path(root / "models" / "llm");
  for (const auto& [file, name] :
       {std::pair("OLMoE-Q4_K_M.gguf", "OLMoE-Q4_K_M"), std::pair("big-00002-of-00003.gguf", "big"),
        std::pair("-00002-of-00003.gguf", "-00002-of-00003"), std::pair("x-0000a-of-00003.gguf", "x-0000a-of-00003")}) {
    std::ofstream(root / file) << "GGUF";
    EXPECT_EQ(NameOfModel(root / file), name);
  }
  EXPECT_EQ(NameOfModel("."), "llm");
  EXPECT_EQ(NameOfModel("./"), "llm");
  EXPECT_EQ(NameOfModel(".."), "models");
  fs::current_path(before);
  fs::create_directory_symlink(root / "models" / "llm", root / "production");
  EXPECT_EQ(NameOfModel(root / "production"), "production");
  const fs::path snapshot = root / "hub/models--Qwen--Qwen3-30B-A3B/snapshots/0123abcd";
  fs::create_directories(snapshot);
  EXPECT_EQ(NameOfModel(snapshot), "Qwen/Qwen3-30B-A3B");
  fs::current_path(snapshot);
  EXPECT_EQ(NameOfModel("."), "Qwen/Qwen3-30B-A3B");
  fs::current_path(before);
  fs::create_directories(root / "hub/models--gpt2/snapshots/1");
  EXPECT_EQ(NameOfModel(root / "hub/models--gpt2/snapshots/1/"), "gpt2");
  EXPECT_EQ(NameOfModel("/nowhere/at/all"), "all");
}

TEST_F(ConfigTest, TimesMustBePositive) {
  config_.step_timeout = absl::ZeroDuration();
  config_.default_deadline = -absl::Seconds(1);
  config_.row_timeout = -absl::Seconds(1);
  const std::string text(config_.Finish().message());
  for (const char* part : {"--step_timeout=0", "--default_deadline=-1s", "--row_timeout"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST_F(ConfigTest, WorkersFromElsewhereMustBeCounted) {
  config_.local_workers = 0;
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--workers must say how many"));
  config_.workers = 3;
  EXPECT_TRUE(config_.Finish().ok());
  EXPECT_EQ(config_.workers, 3);
}

}  // namespace
}  // namespace switchyard::server
