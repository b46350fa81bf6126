// A worker without its network, and weights with wrong bytes: other than their
// checkpoint's manifest says, or than the other ranks'.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/serving/worker.h"

namespace switchyard::worker {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kModel[] = "tests/golden/models/qwen3-qknorm";
constexpr char kWeights[] = "model.safetensors";

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A copy of the tiny model.
class ModelCopy {
 public:
  ModelCopy() {
    for (const char* name : {"config.json", "generation_config.json", kWeights}) {
      dir_.Write(name, Contents(std::string(kModel) + "/" + name));
    }
    // Spaces behind the header, so that no tensor is in a block with it.
    const std::string bytes = Contents(dir_.File(kWeights));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const uint64_t padded = checkpoint::kSummedBlockBytes - sizeof(header);
    std::string out(reinterpret_cast<const char*>(&padded), sizeof(padded));
    out += bytes.substr(sizeof(header), header) + std::string(padded - header, ' ') +
           bytes.substr(sizeof(header) + header);
    dir_.Write(kWeights, out);
  }
  // As a trainer would: of all files as they are now.
  void WriteManifest() const {
    checkpoint::Manifest manifest = {.step = 8};
    for (const char* name : {"config.json", "generation_config.json", kWeights}) {  // by name
      checkpoint::SumBlocks sums;
      const std::string bytes = Contents(dir_.File(name));
      for (size_t at = 0; at < bytes.size(); at += checkpoint::kSummedBlockBytes) {
        sums.Add(absl::string_view(bytes).substr(at, checkpoint::kSummedBlockBytes));
      }
      manifest.files.push_back({.name = name, .sums = sums.Finish()});
    }
    dir_.Write(checkpoint::kManifestName, checkpoint::EncodeManifest(manifest));
  }
  // One bit, `at` bytes behind the tensor's beginning.
  void FlipIn(const std::string& tensor, int64_t at = 0) const {
    const auto checkpoint = checkpoint::Checkpoint::Open(path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const checkpoint::TensorLocation found = checkpoint->Find(tensor);
    ASSERT_NE(found.file, nullptr);
    Flip(kWeights, found.entry->begin + at);
  }
  void Flip(const std::string& file, int64_t at) const {
    std::string bytes = Contents(dir_.File(file));
    bytes[static_cast<size_t>(at)] ^= 2;
    dir_.Write(file, bytes);
  }
  const std::string& path() const { return dir_.path(); }
  // One key of config.json.
  void Configure(const std::string& key, nlohmann::json value) const {
    nlohmann::json config = nlohmann::json::parse(Contents(dir_.File("config.json")));
    config[key] = std::move(value);
    dir_.Write("config.json", config.dump());
  }
  void Remove(const char* name) const { std::filesystem::remove(dir_.File(name)); }

 private:
  const model::TempDir dir_;
};

absl::StatusOr<std::unique_ptr<Worker>> Open(const std::string& model,
                                             const offload::ExpertBudgetOptions& experts = {}) {
  WorkerOptions options;
  options.model_dir = model;
  options.experts = experts;
  return Worker::Open(std::move(options));
}

constexpr fleet::EngineSettings SettingsOf() {
  return {.kv_cache_bytes = 1 << 20, .max_num_seqs = 4, .max_batched_tokens = 32, .max_model_len = 128};
}

// The statuses of ranks with these models after an assignment; those before `with_budget` have the experts' budget, the
// others none.
std::vector<absl::Status> JoinAll(const std::vector<std::string>& models,
                                  const offload::ExpertBudgetOptions& experts = {}, size_t with_budget = SIZE_MAX) {
  comm::InMemoryStore store;
  std::vector<absl::Status> joined(models.size());
  std::vector<std::unique_ptr<Worker>> workers(models.size());  // none leaves while others join
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < models.size(); ++rank) {
    threads.emplace_back([&, rank] {
      offload::ExpertBudgetOptions own;  // each as on a machine of its own
      if (rank < with_budget) own = experts;
      if (!own.file_dir.empty()) own.file_dir += absl::StrCat("/", rank);
      auto worker = Open(models[rank], own);
      joined[rank] = worker.status();
      if (!worker.ok()) return store.CancelWaits("a rank is lost");
      const fleet::RankAssignment assignment = {.epoch = 1,
                                                .rank = static_cast<int>(rank),
                                                .world = static_cast<int>(models.size()),
                                                .store_token = "secret",
                                                .form_deadline_ms = 30'000};
      workers[rank] = *std::move(worker);
      joined[rank] = workers[rank]->Join(assignment, "127.0.0.1", SettingsOf(), &store, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

TEST(WorkerManifestTest, ServesWhatIsAsTheManifestSays) {
  const ModelCopy model;
  model.WriteManifest();
  EXPECT_THAT(JoinAll({model.path(), model.path()}), Each(absl::OkStatus()));
}

TEST(WorkerManifestTest, RefusesAFlippedBitAndNamesIt) {
  for (const char* tensor : {"model.embed_tokens.weight", "model.layers.1.mlp.experts.6.up_proj.weight"}) {
    const ModelCopy model;
    model.WriteManifest();
    model.FlipIn(tensor, 40);
    const std::vector<absl::Status> joined = JoinAll({model.path()});
    EXPECT_TRUE(Open(model.path()).ok());
    EXPECT_TRUE(absl::IsDataLoss(joined[0])) << joined[0];
    EXPECT_THAT(std::string(joined[0].message()),
                AllOf(HasSubstr("model.safetensors: damaged at bytes [1048576, "), HasSubstr("the manifest says ")));
  }
}

// Also where a store brings the experts: the file that it makes is not kept for others.
TEST(WorkerManifestTest, RefusesAFlippedBitOfAnExpertUnderABudget) {
  const ModelCopy model;
  model.WriteManifest();
  model.FlipIn("model.layers.1.mlp.experts.6.up_proj.weight", 40);
  const model::TempDir files;
  EXPECT_TRUE(absl::IsDataLoss(JoinAll({model.path()}, {.budget = "40%", .file_dir = files.path()})[0]));
  EXPECT_TRUE(std::filesystem::is_empty(files.File("0")));
}

TEST(WorkerManifestTest, RefusesOtherFilesThatAreNotTheManifests) {
  const ModelCopy model;
  model.WriteManifest();
  model.Flip("config.json", 100);
  EXPECT_THAT(std::string(Open(model.path()).status().message()), HasSubstr("config.json: damaged at bytes [0, 630)"));
  model.Flip("config.json", 100);
  EXPECT_TRUE(Open(model.path()).ok());
  model.Flip(checkpoint::kManifestName, 60);
  EXPECT_TRUE(absl::IsDataLoss(Open(model.path()).status()));
  model.Flip(checkpoint::kManifestName, 60);
  model.Remove("generation_config.json");
  EXPECT_THAT(std::string(Open(model.path()).status().message()), HasSubstr("generation_config.json: is not there"));
}

// As directories from elsewhere have none.
TEST(WorkerManifestTest, AsksNothingWithoutAManifest) {
  const ModelCopy model;
  model.FlipIn("model.norm.weight");
  EXPECT_THAT(JoinAll({model.path()}), ElementsAre(absl::OkStatus()));
}

// Headers and sizes are the same.
TEST(WorkerAgreementTest, RanksWithOtherBytesDoNotFormAGroup) {
  const ModelCopy whole, other;
  other.FlipIn("model.layers.1.input_layernorm.weight", 6);
  EXPECT_EQ((*Open(whole.path()))->weights_hash(), (*Open(other.path()))->weights_hash());
  const std::vector<absl::Status> joined = JoinAll({whole.path(), other.path(), whole.path()});
  for (const absl::Status& status : joined) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("have loaded different weights: \"model.layers.1.input_layernorm.weight\" differs"),
                      HasSubstr("of 3")));
  }
  EXPECT_THAT(std::string(joined[1].message()), HasSubstr("ranks 1 and 0 of 3"));
  EXPECT_THAT(std::string(joined[2].message()), HasSubstr("ranks 2 and 1 of 3"));
}

TEST(WorkerAgreementTest, RanksWithOtherConfigurationsDoNotFormAGroup) {
  const ModelCopy whole, other, same;
  other.Configure("rms_norm_eps", 1e-5);
  for (const absl::Status& status : JoinAll({whole.path(), other.path()})) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"config.json\" differs"));
  }
  same.Configure("transformers_version", "0.0.1");  // another text of the same model
  EXPECT_THAT(JoinAll({whole.path(), same.path()}), Each(absl::OkStatus()));
}

TEST(WorkerAgreementTest, RanksWithOtherExpertsInTheirFilesDoNotFormAGroup) {
  const ModelCopy whole, other;
  other.FlipIn("model.layers.1.mlp.experts.2.down_proj.weight", 6);
  const model::TempDir files;
  for (const absl::Status& status :
       JoinAll({whole.path(), other.path()}, {.budget = "60%", .file_dir = files.path()})) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"experts of MoE layer 1\" differs"));
  }
}

// A budget is each worker's own: what only one of two has is not compared.
TEST(WorkerAgreementTest, RanksWithAndWithoutABudgetFormAGroup) {
  const ModelCopy whole;
  const model::TempDir files;
  const std::vector<absl::Status> joined = JoinAll({whole.path(), whole.path(), whole.path()},
                                                   {.budget = "60%", .file_dir = files.path()}, /*with_budget=*/1);
  EXPECT_THAT(joined, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace switchyard::worker
