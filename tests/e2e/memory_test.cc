// The peak memory of a worker's process: its own experts and the replicated weights, the KV cache, and some slack.
//
// The checkpoint is made here: 600 MB of bf16 in one file, five experts a layer, which two workers cannot share evenly.
// It is so large that a rank which held everything, or a single worker that held anything twice, would be beyond the
// bound.
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/huge_shared_pages.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/tensor/build_config.h"

namespace switchyard {
namespace {

constexpr int64_t kHidden = 1024, kWidth = 2048, kExperts = 5, kLayers = 9, kVocab = 4096, kQuery = 512, kKeys = 128;
constexpr int64_t kKvBytes = 16 << 20;  // 3640 tokens
// A worker that is linked with CUDA's libraries also loads parts of them.
constexpr int64_t kSlack = 200'000'000 + (kCudaBuilt ? 50'000'000 : 0);

struct Written {
  std::string name;
  std::vector<int64_t> shape;
  bool expert = false;

  int64_t bytes() const {
    int64_t bytes = 2;
    for (const int64_t side : shape) bytes *= side;
    return bytes;
  }
};

std::vector<Written> Tensors() {
  std::vector<Written> out = {{"model.embed_tokens.weight", {kVocab, kHidden}},
                              {"lm_head.weight", {kVocab, kHidden}},
                              {"model.norm.weight", {kHidden}}};
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
      out.push_back({layer + norm, {kHidden}});
    }
    out.push_back({layer + "self_attn.q_proj.weight", {kQuery, kHidden}});
    out.push_back({layer + "self_attn.k_proj.weight", {kKeys, kHidden}});
    out.push_back({layer + "self_attn.v_proj.weight", {kKeys, kHidden}});
    out.push_back({layer + "self_attn.o_proj.weight", {kHidden, kQuery}});
    out.push_back({layer + "block_sparse_moe.gate.weight", {kExperts, kHidden}});
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = absl::StrCat(layer, "block_sparse_moe.experts.", e, ".");
      out.push_back({expert + "w1.weight", {kWidth, kHidden}, true});
      out.push_back({expert + "w3.weight", {kWidth, kHidden}, true});
      out.push_back({expert + "w2.weight", {kHidden, kWidth}, true});
    }
  }
  return out;
}

void WriteConfig(const std::string& path) {
  const nlohmann::json config = {{"architectures", {"MixtralForCausalLM"}},
                                 {"model_type", "mixtral"},
                                 {"vocab_size", kVocab},
                                 {"hidden_size", kHidden},
                                 {"intermediate_size", kWidth},
                                 {"num_hidden_layers", kLayers},
                                 {"num_attention_heads", 8},
                                 {"num_key_value_heads", 2},
                                 {"head_dim", 64},
                                 {"num_local_experts", kExperts},
                                 {"num_experts_per_tok", 1},
                                 {"max_position_embeddings", 2048},
                                 {"rms_norm_eps", 1e-5},
                                 {"rope_theta", 1e4},
                                 {"hidden_act", "silu"},
                                 {"tie_word_embeddings", false},
                                 {"bos_token_id", 1},
                                 {"eos_token_id", 2},
                                 {"torch_dtype", "bfloat16"}};
  std::ofstream(path) << config.dump(1);
}

// bf16 of size 2^-6 … 2^-5, either sign, different everywhere: zeros could hide in shared pages.
void WriteWeights(const std::string& path) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (const Written& tensor : Tensors()) {
    header[tensor.name] = {{"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes()}}};
    end += tensor.bytes();
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof(size));
  out.write(text.data(), static_cast<std::streamsize>(size));
  std::vector<uint64_t> piece(1 << 17);
  uint64_t state = 1;
  for (int64_t at = 0; at < end; at += static_cast<int64_t>(piece.size() * sizeof(uint64_t))) {
    for (uint64_t& four : piece) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      four = ((state ^ (state >> 29)) & 0x807f'807f'807f'807fu) | 0x3c80'3c80'3c80'3c80u;
    }
    const int64_t bytes = std::min<int64_t>(end - at, static_cast<int64_t>(piece.size() * sizeof(uint64_t)));
    out.write(reinterpret_cast<const char*>(piece.data()), bytes);
  }
  ASSERT_TRUE(out.good()) << path;
}

// The bytes that /proc/PID/FILE says in the line of this name; -1: it has none.
int64_t BytesOf(pid_t pid, const char* file, const char* name) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/", file));
  for (std::string line; std::getline(status, line);) {
    absl::string_view rest = line;
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, name) || !absl::ConsumeSuffix(&rest, " kB")) continue;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &kib)) return kib << 10;
  }
  return -1;
}

class MemoryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<model::TempDir>();
    WriteConfig(dir_->File("config.json"));
    WriteWeights(dir_->File("model.safetensors"));
  }
  static void TearDownTestSuite() { dir_.reset(); }

  // A server that has served much of what it can at a time.
  static std::unique_ptr<TestServer> Serve(int workers, const std::string& placement) {
    auto server = TestServer::Start({.model = dir_->path(),
                                     .workers = workers,
                                     .flags = {absl::StrCat("--kv_cache_bytes=", kKvBytes), "--dtype=auto", placement,
                                               "--max_num_seqs=32", "--max_batched_tokens=2048"}});
    if (server == nullptr) return nullptr;
    // A long prompt with logprobs of each position, many short ones, decodes of all of them: most of the cache is used.
    std::vector<v1::GenerateRequest> requests = {IdsRequest(RandomIds(1500, kVocab, 1), 8)};
    requests[0].set_prompt_logprobs(2);
    for (uint64_t i = 0; i < 24; ++i) requests.push_back(IdsRequest(RandomIds(60, kVocab, 2 + i), 8));
    for (const StreamSeen& seen : GenerateAll(server->client(), requests))
      EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
    return server;
  }

  // experts: how many of each layer's rank r holds.
  static void ExpectBounded(const std::vector<int64_t>& experts) {
    int64_t all_experts = 0, rest = 0;
    for (const Written& tensor : Tensors()) (tensor.expert ? all_experts : rest) += tensor.bytes();
    const auto server = Serve(static_cast<int>(experts.size()), "--placement=static");
    ASSERT_NE(server, nullptr);
    const auto load = server->client().GetLoad();
    ASSERT_TRUE(load.ok()) << load.status();
    for (const v1::WorkerLoad& worker : load->workers()) {
      // What all workers hold lies in one memory, once there are two.
      int64_t shared = -1;
      for (const absl::string_view line : absl::StrSplit(Scrape(worker.metrics_address()), '\n')) {
        absl::string_view value = line;
        double bytes = 0;
        if (!absl::ConsumePrefix(&value, "switchyard_worker_shared_weight_bytes ")) continue;
        ASSERT_TRUE(absl::SimpleAtod(value, &bytes)) << line;
        shared = static_cast<int64_t>(bytes);
      }
      if (test::HasHugeSharedPages()) {
        EXPECT_GE(shared, experts.size() == 1 ? 0 : rest);
      }
      EXPECT_LE(shared, experts.size() == 1 ? 0 : rest + rest / 50);
    }
    const std::vector<pid_t> pids = server->WorkerPids();
    ASSERT_EQ(pids.size(), experts.size());
    for (size_t rank = 0; rank < pids.size(); ++rank) {
      const int64_t weights = all_experts * experts[rank] / kExperts + rest;
      const int64_t peak = BytesOf(pids[rank], "status", "VmHWM:"), limit = weights * 115 / 100 + kKvBytes + kSlack;
      EXPECT_LE(peak, limit) << "rank " << rank << " of " << experts.size() << " holds " << weights;
      EXPECT_GE(peak, weights) << "rank " << rank << ": is that the worker?";
      if (experts[rank] * 2 < kExperts) {
        EXPECT_GT(all_experts + rest, limit) << "the checkpoint is too small for this test";
      }
      RecordProperty(absl::StrCat("peak_of_rank_", rank), absl::StrCat(peak, " of ", limit));
    }
  }

  static std::unique_ptr<model::TempDir> dir_;
};
std::unique_ptr<model::TempDir> MemoryTest::dir_;

TEST_F(MemoryTest, OneWorkerHoldsTheModelOnce) { ExpectBounded({5}); }

TEST_F(MemoryTest, TwoWorkersHoldTheirExpertsAndTheRest) { ExpectBounded({3, 2}); }

// Each of which computes by all of them.
TEST_F(MemoryTest, WorkersOfOneMachineHoldEachWeightOnce) {
  if (!test::HasHugeSharedPages()) GTEST_SKIP() << "nothing is shared on this kernel";
  const auto server = Serve(2, "--placement=auto");
  ASSERT_NE(server, nullptr);
  int64_t weights = 0, shared = 0;
  for (const Written& tensor : Tensors()) weights += tensor.bytes();
  for (const pid_t pid : server->WorkerPids()) {
    EXPECT_GE(BytesOf(pid, "smaps_rollup", "Rss:"), weights) << "it has seen all";
    shared += BytesOf(pid, "smaps_rollup", "Pss_Shmem:");
  }
  EXPECT_GE(shared, weights);
  EXPECT_LE(shared, weights + weights / 50);
}

}  // namespace
}  // namespace switchyard
