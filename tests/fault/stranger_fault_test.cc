// Strangers who reach the gRPC port and misuse HTTP/2: the server soon answers again, and its workers are not kept out.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "switchyard/v1/worker.pb.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/raw_connection.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Returns a connection that has sent its preface and answers nothing.
std::unique_ptr<RawConnection> Reach(const std::string& address) {
  auto connection = std::make_unique<RawConnection>(address, RawConnection::Options{.answers = false});
  EXPECT_TRUE(connection->is_connected());
  connection->Send(http2::Preface(), kPatience);
  return connection;
}

int64_t PeakMegabytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes / 1024;
  }
  ADD_FAILURE() << "no peak of process " << pid;
  return -1;
}

class StrangerFaultTest : public testing::Test {
 protected:
  void Start(int workers, const std::vector<std::string>& flags = {}) {
    server_ = TestServer::Start({.model = kDemoModel, .workers = workers, .flags = flags});
    ASSERT_NE(server_, nullptr);
    ASSERT_TRUE(Generate(server_->client(), TextRequest("The", 4)).ok());
  }
  std::unique_ptr<TestServer> server_;
};

// How long each thread of a process has waited for a core, by thread; empty where the system does not say.
using Waits = std::map<std::string, absl::Duration>;
Waits WaitsForCores(pid_t pid) {
  Waits waits;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), gone)) {
    std::ifstream in(task.path() / "schedstat");
    int64_t ran = 0, waited = 0;
    if (in >> ran >> waited) waits[task.path().filename()] = absl::Nanoseconds(waited);
  }
  return waits;
}

// How late the machine has been since `before`: what one thread of each process has waited at most, as an answer goes
// through all of them.
absl::Duration LateSince(const std::map<pid_t, Waits>& before) {
  absl::Duration late;
  for (const auto& [pid, known] : before) {
    absl::Duration longest;
    for (const auto& [thread, waited] : WaitsForCores(pid)) {
      const auto then = known.find(thread);
      longest = std::max(longest, then == known.end() ? waited : waited - then->second);
    }
    late += longest;
  }
  return late;
}

class FloodOfResetsTest : public StrangerFaultTest, public testing::WithParamInterface<std::string> {
 protected:
  // From a flood's end to an answer.  What it guards against is none within a minute; for what a flood leaves to do,
  // machines of two cores have taken up to 11 s.
  static constexpr absl::Duration kLimit = absl::Seconds(20);

  // Opens and resets 50 000 calls in three seconds, each as soon as it is made, unless the connection is ended before.
  static void Flood(RawConnection* connection) {
    const std::string headers =
        http2::HeaderBlock(http2::CallFields(absl::StrCat("/switchyard.v1.InferenceService/", GetParam())));
    const absl::Time begin = absl::Now();
    for (uint32_t call = 0; call < 50000; ++call) {
      const uint32_t stream = 2 * call + 1;
      if (!connection->Send(http2::HeaderFrames(stream, headers) + http2::ResetFrame(stream), kPatience)) return;
      if (call % 100 != 0) continue;
      connection->Discard();
      absl::SleepFor(begin + call * absl::Seconds(3) / 50000 - absl::Now());
    }
  }
  // Returns how long a new client waits for an answer; it retries if it is refused, since a flood may still hold all
  // streams.
  absl::Duration TimeToAnswer() {
    const absl::Time begin = absl::Now();
    const auto client = server_->Connect(kPatience);
    EXPECT_TRUE(WaitUntil([&] { return Generate(*client, TextRequest("The", 4)).ok(); }, kPatience));
    return absl::Now() - begin;
  }
};

// A flood over one connection, beside eight streams.  The server soon ends it, whatever its calls are.
TEST_P(FloodOfResetsTest, IsOverSoonAfterItsEnd) {
  Start(2);
  const std::vector<pid_t> pids = server_->WorkerPids();
  const auto epoch = server_->client().GetLoad()->group_epoch();
  const auto beside = server_->Connect();
  const std::vector<v1::GenerateRequest> requests(8, TextRequest("The", 900));
  auto streams = std::async(std::launch::async, [&] { return GenerateAll(*beside, requests); });
  ASSERT_TRUE(WaitUntil([this] { return server_->client().GetLoad()->running_requests() == 8; }, kPatience));
  const absl::Duration usual = TimeToAnswer();
  const auto flood = Reach(server_->address());
  Flood(flood.get());
  std::map<pid_t, Waits> waits;
  for (const pid_t pid : {getpid(), server_->process().pid(), pids.at(0), pids.at(1)}) waits[pid] = WaitsForCores(pid);
  const absl::Duration took = TimeToAnswer();
  const absl::Duration late = LateSince(waits);
  EXPECT_LE(took, kLimit + usual + late) << "usually " << usual << ", the machine is " << late << " late";
  RecordProperty("seconds_until_an_answer", absl::StrCat(absl::ToDoubleSeconds(took)));
  EXPECT_TRUE(flood->AwaitEnd(kPatience));  // on a slow machine the whole flood may have been sent before
  for (const StreamSeen& stream : streams.get()) {
    ASSERT_TRUE(stream.ok()) << stream.end;
    EXPECT_EQ(stream.choices[0].token_ids.size(), 900u);
  }
  EXPECT_EQ(server_->client().GetLoad()->group_epoch(), epoch);
  EXPECT_EQ(server_->WorkerPids(), pids);
  EXPECT_THAT(server_->process().Output(), testing::Not(testing::HasSubstr("is lost")));
  EXPECT_THAT(server_->process().Output(), testing::HasSubstr("is ended: resets: limit"));
}

INSTANTIATE_TEST_SUITE_P(All, FloodOfResetsTest, testing::Values("Generate", "Tokenize"),
                         [](const auto& info) { return info.param; });

// Messages as large as the server accepts, on links that have shown no token.
TEST_F(StrangerFaultTest, LargeFirstMessagesAreNotParsed) {
  const model::TempDir data, checkpoints;
  // A training worker from elsewhere may come, so there is a port for it.
  Start(2, {"--train_workers=1", "--dataset_root=" + data.path(), "--checkpoint_root=" + checkpoints.path()});
  v1::LinkRequest large;
  while (large.step_result().items_size() < 2000000) large.mutable_step_result()->add_items();
  const std::string bytes = large.SerializeAsString();
  ASSERT_GT(bytes.size(), size_t{3900000});
  ASSERT_NE(server_->worker_address(), "");
  const auto epoch = server_->client().GetLoad()->group_epoch();
  std::vector<std::thread> strangers;
  std::atomic<int> refused{0};
  for (int i = 0; i < 64; ++i) {
    strangers.emplace_back([&] {
      grpc::ChannelArguments apart;
      apart.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      const auto channel =
          grpc::CreateCustomChannel(server_->worker_address(), grpc::InsecureChannelCredentials(), apart);
      RawAnswer answer = RawCall(channel, "/switchyard.v1.WorkerService/Link", bytes, kPatience);
      // On a loaded machine the connection may not be made in time; nothing was read then.  A channel whose connection
      // failed fails calls at once for a while, so the tries take as long as a test's patience, and not a fixed number.
      for (const absl::Time end = absl::Now() + kPatience;
           answer.status.error_code() == grpc::StatusCode::UNAVAILABLE && absl::Now() < end;) {
        absl::SleepFor(absl::Milliseconds(100));
        answer = RawCall(channel, "/switchyard.v1.WorkerService/Link", bytes, kPatience);
      }
      if (absl::StrContains(answer.status.error_message(), "limit 65536")) {
        ++refused;
      } else {
        ADD_FAILURE() << answer.status.error_code() << ": " << answer.status.error_message();
      }
    });
  }
  for (std::thread& stranger : strangers) stranger.join();
  EXPECT_EQ(refused, 64);
  EXPECT_LT(PeakMegabytes(server_->process().pid()), 500) << "64 x 4 MB, and not what they would be when parsed";
  EXPECT_TRUE(Generate(server_->client(), TextRequest("The", 4)).ok());
  EXPECT_EQ(server_->client().GetLoad()->group_epoch(), epoch) << "the group was lost";
}

// Holds all places, and takes each place that becomes free.
class Holder {
 public:
  explicit Holder(std::string address) : address_(std::move(address)), thread_([this] { Run(); }) {}
  ~Holder() {
    over_ = true;
    thread_.join();
  }
  int held() const { return held_; }
  int refused() const { return refused_; }

 private:
  void Run() {
    std::vector<std::unique_ptr<RawConnection>> all;
    while (!over_) {
      auto next = Reach(address_);
      if (next->Pump(absl::Seconds(10)) && !next->seen().bytes.empty()) {  // it is let in
        all.push_back(std::move(next));
        ++held_;
      } else {
        ++refused_;
      }
    }
  }

  const std::string address_;
  std::atomic<bool> over_{false};
  std::atomic<int> held_{0}, refused_{0};
  std::thread thread_;
};

TEST_F(StrangerFaultTest, AFullDoorKeepsNoWorkerOut) {
  Start(1, {"--max_connections=16", "--max_connections_per_client=16"});
  const pid_t worker = server_->WorkerPids().at(0);
  const Holder holder(server_->address());
  ASSERT_TRUE(WaitUntil([&] { return holder.refused() > 0; }, kPatience)) << holder.held() << " are let in";
  ASSERT_EQ(kill(worker, SIGKILL), 0);
  const auto is_back = [&] {
    const std::vector<pid_t> pids = server_->WorkerPids();
    return pids.size() == 1 && pids[0] != worker;
  };
  EXPECT_TRUE(WaitUntil(is_back, kPatience)) << server_->process().Output();
  EXPECT_TRUE(server_->WaitReady(true, kPatience));
  const int before = holder.refused();
  EXPECT_TRUE(WaitUntil([&] { return holder.refused() > before; }, kPatience)) << "the door is still full";
}

}  // namespace
}  // namespace switchyard
