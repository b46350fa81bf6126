#include <atomic>

#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard::cli {
namespace {

using testing::HasSubstr;

TEST(BenchCommandTest, ClosedLoop) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"bench", server.flag(), "--concurrency=3", "--num_requests=12",
                                                 "--prompt_tokens=9", "--max_tokens=5", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const Json report = *ParseJson(run.out);
  EXPECT_EQ(report["requests_ok"], 12);
  EXPECT_EQ(report["mode"], "closed");
  EXPECT_GT(report["ttft_seconds"]["p50"], 0.0);
  EXPECT_GE(report["e2e_seconds"]["p99"], report["ttft_seconds"]["p50"]);
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 12u);
  for (const v1::GenerateRequest& request : requests) {
    ASSERT_EQ(request.token_ids().ids_size(), 9);
    for (int32_t id : request.token_ids().ids()) EXPECT_TRUE(id >= 0 && id < 256 && id != 2) << id;
    EXPECT_EQ(request.max_tokens(), 5);
    EXPECT_TRUE(request.ignore_eos());
  }
}

TEST(BenchCommandTest, OpenLoopCountsErrorsByReason) {
  client::FakeServer server;
  std::atomic<int> calls{0};
  server.on_generate = [&calls](auto*, const auto&, auto* writer) {
    if (++calls % 2 == 0)
      return rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, "full"), "");
    writer->Write(client::Part(0, 0, "x", true));
    return grpc::Status::OK;
  };
  const client::CliRun run = client::RunCliWith({"bench", server.flag(), "--rate=500", "--num_requests=10"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("5 requests finished"));
  EXPECT_THAT(run.out, HasSubstr("QUEUE_FULL           5"));
  EXPECT_THAT(run.out, HasSubstr("first token"));
}

TEST(BenchCommandTest, RequestsFromInput) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"bench", server.flag(), "--num_requests=3", "--input=-"},
                                                "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::string texts;
  for (const v1::GenerateRequest& request : server.requests()) texts += request.text();
  EXPECT_EQ(texts, "aba");
}

TEST(BenchCommandTest, TooLongForTheModel) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"bench", server.flag(), "--prompt_tokens=1000"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--prompt_tokens=1000 + --max_tokens=64 > the model's context of 1024"));
}

}  // namespace
}  // namespace switchyard::cli
