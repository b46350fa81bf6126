// The rendezvous store by RPC: a worker's side against the server's, over loopback.
#include "workers/process/remote_store.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "scheduler/base/clock.h"
#include "server/fleet/group_store.h"
#include "server/fleet/worker_service.h"

namespace switchyard::worker {
namespace {

class RemoteStoreTest : public testing::Test {
 protected:
  RemoteStoreTest() : service_(/*events=*/nullptr, /*trainers=*/nullptr, &store_, fleet::EngineSettings()) {
    store_.Open("token");
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
  }
  ~RemoteStoreTest() override {
    store_.CloseAll();  // answers who still waits
    server_->Shutdown();
  }
  absl::Time Later() const { return absl::Now() + absl::Seconds(60); }

  server::GroupStore store_;
  server::WorkerServiceImpl service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RemoteStoreTest, WhatOneRankSetsTheOthersGet) {
  RemoteStore one(channel_, "token"), other(channel_, "token");
  const std::string bytes("\0\xff binary", 9);
  EXPECT_TRUE(one.Set("k", bytes).ok());
  EXPECT_TRUE(one.Set("empty", "").ok());
  const auto values = other.Get({"k", "empty"}, Later());
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<std::string>{bytes, ""}));
}

TEST_F(RemoteStoreTest, ErrorsKeepTheirCode) {
  RemoteStore store(channel_, "token"), stranger(channel_, "guess");
  EXPECT_TRUE(store.Set("k", "1").ok());
  EXPECT_EQ(store.Set("k", "2").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(stranger.Set("x", "1").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(stranger.Get({"k"}, Later()).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(RemoteStoreTest, GetWaitsForTheLastKey) {
  RemoteStore reader(channel_, "token"), writer(channel_, "token");
  std::thread set([&] {
    EXPECT_TRUE(writer.Set("a", "1").ok());
    EXPECT_TRUE(writer.Set("b", "2").ok());
  });
  const auto values = reader.Get({"b", "a"}, Later());
  set.join();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<std::string>{"2", "1"}));
}

TEST_F(RemoteStoreTest, CancelFreesWhoWaitsAndWhoComesLater) {
  RemoteStore store(channel_, "token");
  absl::StatusOr<std::vector<std::string>> waiting = absl::InternalError("untouched");
  std::thread wait([&] { waiting = store.Get({"never"}, Later()); });
  store.CancelWaits("rank 1 is lost");  // before, during or after the call goes out: the same answer
  wait.join();
  EXPECT_EQ(waiting.status(), absl::CancelledError("rank 1 is lost"));
  EXPECT_EQ(store.Get({"never"}, Later()).status(), absl::CancelledError("rank 1 is lost"));
}

TEST_F(RemoteStoreTest, TheServersSweepNamesTheMissingKey) {
  RemoteStore store(channel_, "token");
  absl::StatusOr<std::vector<std::string>> waiting = absl::InternalError("untouched");
  std::atomic<bool> done{false};
  std::thread wait([&] {
    waiting = store.Get({"rank 3"}, absl::Now() + absl::Milliseconds(20));
    done = true;
  });
  for (; !done; std::this_thread::yield()) store_.Sweep(MonotonicNow());
  wait.join();
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(waiting.status().message()), "rendezvous: nobody set rank 3");
}

TEST_F(RemoteStoreTest, AWaitMayBeLongerThanTheServersLimit) {
  RemoteStore reader(channel_, "token"), writer(channel_, "token");
  absl::StatusOr<std::vector<std::string>> waiting = absl::InternalError("untouched");
  std::atomic<bool> done{false};
  std::thread wait([&] {
    waiting = reader.Get({"k"}, absl::InfiniteFuture());
    done = true;
  });
  for (int i = 0; i < 20 && !done; ++i) {
    store_.Sweep(MonotonicNow() + absl::Hours(1));  // the server's limit has passed
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(writer.Set("k", "1").ok());
  wait.join();
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_EQ(*waiting, (std::vector<std::string>{"1"}));
}

TEST_F(RemoteStoreTest, ANewEpochEndsTheWaitsOfTheOld) {
  RemoteStore store(channel_, "token");
  absl::StatusOr<std::vector<std::string>> waiting = absl::InternalError("untouched");
  std::atomic<bool> done{false};
  std::thread wait([&] {
    waiting = store.Get({"never"}, absl::InfiniteFuture());
    done = true;
  });
  for (; !done; std::this_thread::yield()) store_.Open("token");
  wait.join();
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kAborted);
}

TEST_F(RemoteStoreTest, AServerThatIsGoneIsAnError) {
  server_->Shutdown();
  RemoteStore store(channel_, "token");
  EXPECT_EQ(store.Set("k", "v").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace switchyard::worker
