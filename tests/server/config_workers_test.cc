// Flags about workers: what is passed on to them, how many there are, what they train, and where their experts are.
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/flags/flag_set.h"
#include "scheduler/placement/placement_mode.h"
#include "server/config.h"
#include "server/server_flags.h"
#include "tests/server/config_fixture.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

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

TEST_F(ConfigTest, WorkersFromElsewhereMustBeCounted) {
  config_.local_workers = 0;
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--workers must say how many"));
  config_.workers = 3;
  EXPECT_TRUE(config_.Finish().ok());
  EXPECT_EQ(config_.workers, 3);
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

TEST_F(ConfigTest, PlacementIsAutoWithoutSlots) {
  EXPECT_TRUE(config_.Finish().ok()) << config_.Finish();
  EXPECT_EQ(config_.placement.mode, placement::PlacementMode::kAuto);
  EXPECT_FALSE(config_.placement.has_slots());
  config_.placement = {.mode = placement::PlacementMode::kAuto, .spare_slots = -1};
  EXPECT_THAT(std::string(config_.Finish().message()), HasSubstr("--spare_slots=-1: must be within [0, 64]"));
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

}  // namespace
}  // namespace switchyard::server
