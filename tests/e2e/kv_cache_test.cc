// --kv_cache_dtype: greedy tokens of each form do not depend on workers, other requests, chunks, preemption or blocks;
// what fits and what is shown of it; errors.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/expert_servers.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

// Of the demo model, a token: 8 layers, 2 kv heads of 32 numbers.
constexpr int64_t kPlainBytes = 2 * 8 * 2 * 32 * 2, kBytes = 2 * 8 * 2 * (32 + 4);

class KvCacheTest : public ExpertServersTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string flag() const { return absl::StrCat("--kv_cache_dtype=", GetParam()); }
};

int32_t Blocks(TestServer* server) {
  const auto load = server->client().GetLoad();
  EXPECT_TRUE(load.ok()) << load.status();
  return load.ok() ? load->workers(0).kv_blocks_total() : 0;
}

TEST_P(KvCacheTest, TokensDependOnTheFormAlone) {
  const auto one = Start(1, {flag()});
  ASSERT_NE(one, nullptr);
  const auto info = one->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->kv_cache_dtype(), GetParam());
  EXPECT_EQ(info->dtype(), "bf16");
  EXPECT_THAT(Scrape(one->metrics_address()), HasSubstr(absl::StrCat("cache_dtype=\"", GetParam(), "\"")));
  const auto expected = Tokens(one.get());
  ExpectTokensOfEach(
      expected, flag(),
      {{2, {}},
       {2, {"--placement=no_estimate", "--spare_slots=1"}},
       {1, {"--prefill_chunk=3", "--prefix_reuse=false", "--micro_batches=2"}},
       {1, {"--prefill_chunk=7", "--block_size=1", "--quantization=none"}},
       // 12 blocks of 4 tokens: requests preempt each other.
       {1, {"--block_size=4", absl::StrCat("--kv_cache_bytes=", 12 * 4 * kBytes), "--max_model_len=48"}}});
}

TEST_P(KvCacheTest, MoreTokensFit) {
  const auto server = Start(1, {flag(), "--block_size=16", absl::StrCat("--kv_cache_bytes=", 100 * 16 * kPlainBytes)});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Blocks(server.get()), 100 * kPlainBytes / kBytes);
}

INSTANTIATE_TEST_SUITE_P(Forms, KvCacheTest, testing::Values("int8", "fp8"),
                         [](const auto& param) { return std::string(param.param); });

using KvCacheErrors = ExpertServersTest;

TEST_F(KvCacheErrors, AreSaid) {
  EXPECT_THAT(Refusal({"--kv_cache_dtype=int4"}), HasSubstr("--kv_cache_dtype=int4: must be one of auto, int8, fp8"));
  EXPECT_THAT(Refusal({"--kv_cache_dtype=int8", "--dtype=fp64"}),
              HasSubstr("--kv_cache_dtype=int8: is for fp32, bf16 and fp16 on CPUs so far, not fp64 on cpu"));
}

}  // namespace
}  // namespace switchyard
