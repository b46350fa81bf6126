// A worker's end of the link to a server that does not read: what waits is bounded, and what counts is not lost.
#include "workers/session/link_session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"

namespace switchyard::worker {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

class SilentServer final : public v1::WorkerService::Service {
 public:
  SilentServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    SY_CHECK(server_ != nullptr);
  }
  ~SilentServer() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // From now on it reads.
  void Read() { reads_.Notify(); }
  // All that was said up to the word that training has ended.
  std::vector<v1::LinkRequest> AwaitEnd() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
    absl::MutexLock lock(&mu_);
    return messages_;
  }

 private:
  grpc::Status Link(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::LinkResponse, v1::LinkRequest>* stream) override {
    EXPECT_TRUE(reads_.WaitForNotificationWithTimeout(kPatience));
    v1::LinkRequest message;
    while (!ended_.HasBeenNotified() && stream->Read(&message)) {
      absl::MutexLock lock(&mu_);
      messages_.push_back(message);
      if (message.has_training_ended()) ended_.Notify();
    }
    return grpc::Status::OK;
  }

  absl::Notification reads_, ended_;
  absl::Mutex mu_;
  std::vector<v1::LinkRequest> messages_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class NoRole final : public LinkRole {
 public:
  void Describe(fleet::WorkerInfo*) const override {}
  std::unique_ptr<LinkHandler> Begin(std::shared_ptr<grpc::Channel>, Place, LinkSendFn) override { return nullptr; }
  void Abort(int64_t, const std::string&) override {}
  bool served() const override { return true; }
  bool lost() const override { return false; }
};

TEST(LinkSessionTest, WordsOnProgressWaitInABoundedQueue) {
  constexpr int64_t kNotes = 4 * LinkSession::kMostWaiting;
  SilentServer server;
  NoRole role;
  LinkSession session(ConnectToServer(server.address(), grpc::InsecureChannelCredentials()), &role);
  session.Start();
  const auto note = [&](int64_t epoch) {
    v1::LinkRequest message;
    message.mutable_training_note()->set_epoch(epoch);
    message.mutable_training_note()->set_text(std::string(16 << 10, 'x'));  // few go before the stream is full
    return session.Send(std::move(message));
  };
  for (int64_t i = 0; i < kNotes; ++i) ASSERT_TRUE(note(i));
  // What is no progress waits however long the queue is; words that come later take a place before it.
  for (int64_t i = 0; i < 3; ++i) {
    v1::LinkRequest evaluated;
    evaluated.mutable_training_evaluated()->set_epoch(i);
    ASSERT_TRUE(session.Send(std::move(evaluated)));
  }
  ASSERT_TRUE(note(kNotes));
  v1::LinkRequest ended;
  ended.mutable_training_ended()->set_epoch(1);
  ASSERT_TRUE(session.Send(std::move(ended)));
  server.Read();
  std::vector<int64_t> notes, evaluated;
  for (const v1::LinkRequest& message : server.AwaitEnd()) {
    if (message.has_training_note()) notes.push_back(message.training_note().epoch());
    if (message.has_training_evaluated()) evaluated.push_back(message.training_evaluated().epoch());
  }
  session.Close();
  (void)session.WaitDone();
  EXPECT_EQ(evaluated, (std::vector<int64_t>{0, 1, 2}));
  ASSERT_FALSE(notes.empty());
  EXPECT_GE(notes.size(), LinkSession::kMostWaiting - 1);
  EXPECT_LT(notes.size(), 2 * LinkSession::kMostWaiting);
  EXPECT_EQ(notes.front(), 0);
  EXPECT_EQ(notes.back(), kNotes);  // the newest
  EXPECT_TRUE(std::is_sorted(notes.begin(), notes.end()));
}

}  // namespace
}  // namespace switchyard::worker
