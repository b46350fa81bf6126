// The server's configuration: its names, models, adapters, limits and times.  Every problem is reported at once.
#include "server/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/config_fixture.h"
#include "tests/workers/model/temp_dir.h"

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

}  // namespace
}  // namespace switchyard::server
