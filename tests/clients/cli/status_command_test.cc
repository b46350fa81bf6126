#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void AddWorker(client::FakeServer* server) {
  v1::WorkerLoad* worker = server->load.add_workers();
  worker->set_rank(1);
  worker->set_pid(4242);
  worker->set_host("box");
  worker->set_state("ready");
  worker->set_kv_blocks_used(10);
  worker->set_kv_blocks_cached(5);
  worker->set_kv_blocks_total(100);
  worker->set_block_size(16);
  worker->set_metrics_address("10.0.0.7:9465");
}

TEST(StatusCommandTest, Table) {
  client::FakeServer server;
  AddWorker(&server);
  server.load.set_running_requests(3);
  server.load.set_waiting_requests(2);
  server.load.set_max_waiting_requests(1024);
  const client::CliRun run = client::RunCliWith({"status", server.flag()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr(": ready"), HasSubstr("fake"),
                             HasSubstr("3 running, 2 waiting (0 tokens) of at most 1024"), HasSubstr("4242"),
                             HasSubstr("10.0.0.7:9465"), HasSubstr("10 + 5 / 100 of 16 tokens (10.0% used)")));
}

TEST(StatusCommandTest, Json) {
  client::FakeServer server;
  AddWorker(&server);
  const Json status = *ParseJson(client::RunCliWith({"status", server.flag(), "--json"}).out);
  EXPECT_EQ(status["ready"], true);
  EXPECT_EQ(status["model"]["name"], "fake");
  EXPECT_EQ(status["workers"][0]["pid"], 4242);
  EXPECT_EQ(status["workers"][0]["metrics_address"], "10.0.0.7:9465");
  EXPECT_EQ(status["requests"]["running"], 0);
}

TEST(StatusCommandTest, SaysWhatAutoPlacementGains) {
  client::FakeServer server;
  AddWorker(&server);
  EXPECT_THAT(client::RunCliWith({"status", server.flag()}).out, testing::Not(HasSubstr("placement")));
  v1::AutoPlacement* placement = server.load.mutable_auto_placement();
  placement->set_steps(400);
  placement->set_deciding_steps(120);
  placement->set_gained_seconds(1.5);
  EXPECT_THAT(client::RunCliWith({"status", server.flag()}).out,
              HasSubstr("auto: 120 of 400 steps went another way than static; gained 1.500 s since the group formed "
                        "(3.750 ms a step)"));
  const Json status = *ParseJson(client::RunCliWith({"status", server.flag(), "--json"}).out);
  EXPECT_EQ(status["auto_placement"]["deciding_steps"], 120);
  EXPECT_EQ(status["auto_placement"]["gained_seconds"], 1.5);
}

TEST(StatusCommandTest, SaysWhatMicroBatchesGain) {
  client::FakeServer server;
  AddWorker(&server);
  EXPECT_THAT(client::RunCliWith({"status", server.flag()}).out, testing::Not(HasSubstr("micro-batches")));
  v1::MicroBatches* cut = server.load.mutable_micro_batches();
  cut->set_steps(50);
  cut->set_cut_steps(40);
  cut->set_gained_seconds(0.25);
  EXPECT_THAT(client::RunCliWith({"status", server.flag()}).out,
              HasSubstr("auto: cut the rows of 40 of 50 steps; gained 0.250 s since the group formed"));
  const Json status = *ParseJson(client::RunCliWith({"status", server.flag(), "--json"}).out);
  EXPECT_EQ(status["micro_batches"]["cut_steps"], 40);
}

TEST(StatusCommandTest, HealthIsOneQuestion) {
  client::FakeServer server;
  const client::CliRun ready = client::RunCliWith({"status", "--health=ready", server.flag()});
  EXPECT_EQ(ready.exit_code, 0) << ready.err;
  EXPECT_EQ(ready.out, "ready\n");
  server.SetReady(false);
  const client::CliRun waiting = client::RunCliWith({"status", "--health=ready", server.flag()});
  EXPECT_EQ(waiting.exit_code, 1);
  EXPECT_EQ(waiting.out, "not ready\n");
  EXPECT_EQ(client::RunCliWith({"status", "--health=alive", server.flag()}).exit_code, 0);
  EXPECT_EQ(client::RunCliWith({"status", "--health=well", server.flag()}).exit_code, 2);
  EXPECT_EQ(client::RunCliWith({"status", "--health=alive", "--server=127.0.0.1:1"}).exit_code, 1);
}

// A process that hangs: the kernel takes the connection, and nobody speaks.
TEST(StatusCommandTest, AServerThatHangsIsGivenUpAtTheTimeLimit) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const client::CliRun run = client::RunCliWith(
      {"status", "--health=alive", "--timeout=0.25", absl::StrCat("--server=127.0.0.1:", ntohs(address.sin_port))});
  close(listener);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("no answer within 250ms"));
}

TEST(StatusCommandTest, NotReadySaysWhy) {
  client::FakeServer server;
  server.SetReady(false);
  server.load.set_ready(false);
  server.load.set_not_ready_reason("worker 1 is loading");
  server.model_status =
      rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::MODEL_LOADING, "loading"), "");
  const client::CliRun run = client::RunCliWith({"status", server.flag()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("NOT ready: worker 1 is loading"));
  EXPECT_EQ((*ParseJson(client::RunCliWith({"status", server.flag(), "--json"}).out))["not_ready_reason"],
            "worker 1 is loading");
}

TEST(StatusCommandTest, WaitsUntilReady) {
  client::FakeServer server;
  server.SetReady(false);
  server.load.set_not_ready_reason("loading");
  std::thread later([&server] {
    absl::SleepFor(absl::Milliseconds(50));
    server.SetReady(true);
  });
  const client::CliRun run = client::RunCliWith({"status", server.flag(), "--wait=20"});
  later.join();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr(": ready"));
}

TEST(StatusCommandTest, TheWaitEnds) {
  const client::CliRun run = client::RunCliWith({"status", "--server=127.0.0.1:1", "--wait=0.2", "--json"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ((*ParseJson(run.out))["error"]["reason"], "UNREACHABLE");
}

}  // namespace
}  // namespace switchyard::cli
