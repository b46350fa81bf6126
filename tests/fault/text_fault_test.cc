// More text than the server can hold or process: other clients are served meanwhile, and errors report lack of memory.
#include <sys/resource.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(150);

// Tokenize calls that are under way at once, over a connection of their own.
class Flood {
 public:
  Flood(const std::string& server, int calls, size_t bytes) : ends_(static_cast<size_t>(calls)) {
    request_.mutable_text()->reserve(bytes);
    while (request_.text().size() + 20 < bytes) request_.mutable_text()->append("The quick brown fox ");
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(256 << 20);
    stub_ = v1::InferenceService::NewStub(grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), args));
    contexts_ = std::vector<grpc::ClientContext>(ends_.size());
    answers_.resize(ends_.size());
    for (size_t i = 0; i < ends_.size(); ++i) {
      contexts_[i].set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kLimit));
      stub_->async()->Tokenize(&contexts_[i], &request_, &answers_[i], [this, i](const grpc::Status& status) {
        answers_[i].Clear();
        absl::MutexLock lock(&mu_);
        ends_[i] = status;
        ++ended_;
      });
    }
  }
  ~Flood() {
    for (grpc::ClientContext& context : contexts_) context.TryCancel();
    (void)Await(static_cast<int>(ends_.size()));
  }
  // Waits until so many calls have ended.
  bool Await(int calls) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ >= calls; };
    return mu_.AwaitWithTimeout(absl::Condition(&there), kLimit);
  }
  int ended() {
    absl::MutexLock lock(&mu_);
    return ended_;
  }
  // REQUIRES: Await of all calls has returned.
  const std::vector<grpc::Status>& ends() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return ends_; }

 private:
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  v1::TokenizeRequest request_;
  std::vector<grpc::ClientContext> contexts_;
  std::vector<v1::TokenizeResponse> answers_;
  absl::Mutex mu_;
  std::vector<grpc::Status> ends_ ABSL_GUARDED_BY(mu_);
  int ended_ ABSL_GUARDED_BY(mu_) = 0;
};

v1::TokenizeRequest ShortText() {
  v1::TokenizeRequest request;
  request.set_text("The quick brown fox");
  return request;
}

void ExpectReported(const grpc::Status& end) {
  EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << end.error_message();
  const rpc::ErrorView view = rpc::ViewError(end);
  EXPECT_EQ(view.reason, "QUEUE_FULL") << end.error_message();
  EXPECT_GT(view.retry_after, absl::ZeroDuration()) << end.error_message();
  EXPECT_EQ(view.details.metadata().count("limit"), 1u) << end.error_message();
  EXPECT_EQ(view.details.metadata().count("actual"), 1u) << end.error_message();
}

TEST(TextFloodTest, AnotherClientIsAnsweredMeanwhile) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1});
  ASSERT_NE(server, nullptr);
  constexpr int kCalls = 110;  // less than half of --max_connection_bytes
  Flood flood(server->address(), kCalls, 512 << 10);
  ASSERT_TRUE(flood.Await(1));
  const auto other = server->Connect();
  ASSERT_NE(other, nullptr);
  for (int i = 0; i < 5; ++i) {
    const auto answer = other->Tokenize(ShortText());
    EXPECT_TRUE(answer.ok()) << answer.status();
  }
  EXPECT_LT(flood.ended(), kCalls) << "it was answered behind all others";
  ASSERT_TRUE(flood.Await(kCalls));
  int served = 0;
  for (const grpc::Status& end : flood.ends()) {
    end.ok() ? void(++served) : ExpectReported(end);
  }
  EXPECT_GT(served, 0);
  EXPECT_LT(served, kCalls) << "55 MB wait";
}

// The address space that a process has, in bytes.
rlim_t AddressSpaceOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  rlim_t pages = 0;
  file >> pages;
  return pages * 4096;
}

TEST(TextFloodTest, WantOfMemoryIsSaidAndTheServerLives) {
  const auto server = TestServer::Start({.model = kDemoModel, .workers = 1});
  ASSERT_NE(server, nullptr);
  const pid_t pid = server->process().pid();
  const rlim_t space = AddressSpaceOf(pid) + (rlim_t{300} << 20);
  const rlimit limit = {space, space};
  ASSERT_EQ(prlimit(pid, RLIMIT_AS, &limit, nullptr), 0);
  for (int round = 0; round < 3; ++round) {
    Flood flood(server->address(), 60, (4 << 20) - 1024);
    ASSERT_TRUE(flood.Await(60));
    // The connection itself is ended if its calls hold more than unfinished calls may.
    const bool was_ended = absl::StrContains(server->process().Output(), "is ended: memory: limit");
    for (const grpc::Status& end : flood.ends()) {
      if (end.ok() || (was_ended && end.error_code() == grpc::StatusCode::UNAVAILABLE)) continue;
      EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << end.error_message();
    }
    ASSERT_FALSE(server->process().Wait(absl::ZeroDuration()).has_value()) << "the server is dead";
    if (HasFailure()) return;
  }
  const auto answer = server->client().Tokenize(ShortText());
  EXPECT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(Generate(server->client(), TextRequest("The", 8)).ok());
}

}  // namespace
}  // namespace switchyard
