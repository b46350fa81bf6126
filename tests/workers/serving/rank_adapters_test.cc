// A worker's adapters, without its network: what they are from the start on, what they weigh, what is refused.
#include "workers/serving/rank_adapters.h"

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kModel[] = "tests/golden/models/olmoe-clip";
const fleet::AdapterPlace kLora = {"lora", "tests/golden/adapters/lora-olmoe-clip"};
const fleet::AdapterPlace kOther = {"other", "tests/golden/adapters/other-olmoe-clip"};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A copy of an adapter's folder.
void Copy(const fleet::AdapterPlace& place, const std::string& alpha, const model::TempDir& to) {
  for (const char* const name : {"adapter_config.json", "adapter_model.safetensors"}) {
    to.Write(name, absl::StrReplaceAll(ReadAll(absl::StrCat(place.dir, "/", name)),
                                       {{"\"lora_alpha\": 8", absl::StrCat("\"lora_alpha\": ", alpha)}}));
  }
}

absl::StatusOr<RankAdapters> Open(const std::vector<fleet::AdapterPlace>& places) {
  return RankAdapters::Open(places, *model::ReadModelConfig(kModel), DType::kF32);
}

WorkerOptions With(const std::vector<fleet::AdapterPlace>& places) {
  WorkerOptions options;
  options.model_dir = kModel;
  options.dtype = "fp32";
  options.adapters = places;
  return options;
}

TEST(RankAdaptersTest, TheirHashIsOfNamesOrderAndContents) {
  const model::TempDir same, changed;
  Copy(kLora, "8", same);
  Copy(kLora, "9", changed);
  const auto hash = [](const std::vector<fleet::AdapterPlace>& places) {
    const auto adapters = Open(places);
    EXPECT_TRUE(adapters.ok()) << adapters.status();
    return adapters->Hash();
  };
  const std::string both = hash({kLora, kOther});
  EXPECT_EQ(both.size(), 16u);
  EXPECT_EQ(hash({{"lora", same.path()}, kOther}), both);
  EXPECT_NE(hash({{"lora", changed.path()}, kOther}), both);
  EXPECT_NE(hash({{"law", kLora.dir}, kOther}), both);
  EXPECT_NE(hash({kOther, kLora}), both);
  EXPECT_NE(hash({kLora}), both);
  EXPECT_THAT(Open({kLora, kOther})->names(), ElementsAre("lora", "other"));
  EXPECT_TRUE(RankAdapters().empty());
}

TEST(RankAdaptersTest, AFolderThatChangesAfterTheStartIsNotLoaded) {
  const model::TempDir dir;
  Copy(kLora, "8", dir);
  const auto adapters = Open({{"lora", dir.path()}});
  ASSERT_TRUE(adapters.ok()) << adapters.status();
  const model::ModelConfig config = *model::ReadModelConfig(kModel);
  const auto go_on = [](int64_t, int64_t) { return true; };
  auto layers = adapters->Load(config, DType::kF32, go_on);
  ASSERT_TRUE(layers.ok()) << layers.status();
  model::ModelWeights weights;
  weights.adapters = *std::move(layers);
  ASSERT_EQ(weights.adapters.size(), static_cast<size_t>(config.num_layers()));
  EXPECT_EQ(weights.adapters[0].size(), 1u);
  EXPECT_EQ(weights.bytes(), adapters->bytes());
  Copy(kLora, "9", dir);
  const absl::Status status = adapters->Load(config, DType::kF32, go_on).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("--adapters: lora=", dir.path(), ": has other")));
}

TEST(RankAdaptersTest, LoadingReportsEachAndCanBeStopped) {
  const auto adapters = Open({kLora, kOther});
  ASSERT_TRUE(adapters.ok()) << adapters.status();
  const model::ModelConfig config = *model::ReadModelConfig(kModel);
  std::vector<std::pair<int64_t, int64_t>> seen;
  const auto load = [&](size_t calls) {
    seen.clear();
    return adapters->Load(config, DType::kF32, [&](int64_t done, int64_t total) {
      seen.emplace_back(done, total);
      return seen.size() < calls;
    });
  };
  ASSERT_TRUE(load(3).ok());
  const int64_t first = Open({kLora})->bytes(), both = adapters->bytes();
  EXPECT_THAT(seen, ElementsAre(std::pair(first, both), std::pair(both, both)));
  EXPECT_EQ(load(1).status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(seen, ElementsAre(std::pair(first, both)));
}

absl::Status Join(Worker* worker, Worker::Progress progress) {
  comm::InMemoryStore store;
  return worker->Join({.epoch = 1, .rank = 0, .world = 1, .store_token = "secret", .form_deadline_ms = 30'000},
                      "127.0.0.1",
                      {.kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 128},
                      &store, std::move(progress));
}

// A worker that has not served yet ends by this error (serving_handler.cc).
TEST(RankAdaptersTest, AChangedFolderIsFoundBeforeTheModelIsLoaded) {
  const model::TempDir dir;
  Copy(kLora, "8", dir);
  const auto worker = Worker::Open(With({{"lora", dir.path()}}));
  ASSERT_TRUE(worker.ok()) << worker.status();
  Copy(kLora, "9", dir);
  int reports = 0;
  const absl::Status joined = Join(worker->get(), [&](const fleet::LoadProgress&) {
    ++reports;
    return true;
  });
  EXPECT_EQ(joined.code(), absl::StatusCode::kDataLoss) << joined;
  EXPECT_EQ(reports, 0) << "no weights were loaded";
}

TEST(RankAdaptersTest, AWorkerHasThemBesideItsWeights) {
  std::vector<int64_t> bytes;
  std::vector<std::string> hashes;
  for (const std::vector<fleet::AdapterPlace>& places :
       {std::vector<fleet::AdapterPlace>{}, std::vector<fleet::AdapterPlace>{kLora, kOther}}) {
    auto worker = Worker::Open(With(places));
    ASSERT_TRUE(worker.ok()) << worker.status();
    const absl::Status joined = Join(worker->get(), nullptr);
    ASSERT_TRUE(joined.ok()) << joined;
    bytes.push_back((*worker)->weight_bytes());
    hashes.push_back((*worker)->weights_hash());
    EXPECT_EQ((*worker)->adapter_names().size(), places.size());
  }
  EXPECT_EQ(bytes[1] - bytes[0], Open({kLora, kOther})->bytes());
  EXPECT_EQ(hashes[1].substr(0, 16), hashes[0].substr(0, 16)) << "the base is the same";
  EXPECT_NE(hashes[1], hashes[0]);
}

TEST(RankAdaptersTest, OptionsThatDoNotGoTogetherAreRefused) {
  const auto refusal = [](const WorkerOptions& options) {
    return std::string(Worker::Open(options).status().message());
  };
  EXPECT_THAT(refusal(With({{"a", "/nonexistent"}})), HasSubstr("--adapters: a=/nonexistent: "));
  EXPECT_THAT(refusal(With({kLora, {"b", "tests/golden/adapters/lora-mixtral-window"}})),
              testing::AllOf(HasSubstr("--adapters: b=tests/golden/adapters/lora-mixtral-window: model.layers.0."),
                             HasSubstr("the adapter is for [")));
  WorkerOptions options = With({kLora});
  options.adapter_dir = kOther.dir;
  EXPECT_THAT(refusal(options), HasSubstr(absl::StrCat("--adapters: goes with no --adapter=", kOther.dir)));
  options = With({kLora});
  options.dummy_weights = true;
  EXPECT_THAT(refusal(options), HasSubstr("--adapters: goes with no --load_format=dummy"));
  options = With({kLora});
  options.device = Device::Cuda(0);
  const absl::Status device = Worker::Open(options).status();
  EXPECT_EQ(device.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(device.message()), HasSubstr("--adapters: is for workers on CPUs so far, not --device=cuda"));
}

}  // namespace
}  // namespace switchyard::worker
