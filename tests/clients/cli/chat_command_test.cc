#include <signal.h>
#include <unistd.h>

#include <sstream>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard::cli {
namespace {

using testing::HasSubstr;

TEST(ChatCommandTest, TheModelSeesTheWholeConversation) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"chat", server.flag(), "--system=Be brief", "--max_tokens=2"},
                                                "Hello\n\nAnd now?\n/reset\nAgain\n/exit\nunread\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "t0 t1\nt0 t1\nt0 t1\n");
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 3u);
  const v1::Messages& second = requests[1].messages();
  ASSERT_EQ(second.messages_size(), 4);
  EXPECT_EQ(second.messages(0).role(), "system");
  EXPECT_EQ(second.messages(0).content(), "Be brief");
  EXPECT_EQ(second.messages(1).content(), "Hello");
  EXPECT_EQ(second.messages(2).role(), "assistant");
  EXPECT_EQ(second.messages(2).content(), "t0 t1");
  EXPECT_EQ(second.messages(3).content(), "And now?");
  EXPECT_EQ(requests[2].messages().messages_size(), 2);  // after /reset: the system message and this one
}

TEST(ChatCommandTest, AFailedTurnIsTakenBack) {
  client::FakeServer server;
  int calls = 0;
  server.on_generate = [&calls](auto*, const auto&, auto* writer) {
    if (++calls == 1)
      return rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, "gone"), "r");
    writer->Write(client::Part(0, 0, "fine", true));
    return grpc::Status::OK;
  };
  const client::CliRun run = client::RunCliWith({"chat", server.flag()}, "One\nTwo\n");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("gone"));
  EXPECT_THAT(run.out, HasSubstr("fine\n"));
  EXPECT_EQ(server.requests().at(1).messages().messages_size(), 1);
}

TEST(ChatCommandTest, CtrlCStopsTheAnswerOnly) {
  client::FakeServer server;
  int calls = 0;
  server.on_generate = [&calls](grpc::ServerContext* context, const auto&, auto* writer) {
    if (++calls > 1) {
      writer->Write(client::Part(0, 0, "fine", true));
      return grpc::Status::OK;
    }
    writer->Write(client::Part(0, 0, "half"));
    kill(getpid(), SIGINT);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  const client::CliRun run = client::RunCliWith({"chat", server.flag()}, "One\nTwo\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("(stopped)"));
  EXPECT_THAT(run.out, HasSubstr("fine\n"));
  ASSERT_EQ(server.requests().size(), 2u);
  EXPECT_EQ(server.requests()[1].messages().messages_size(), 3);  // what was said, what was answered, what is said now
}

TEST(ChatCommandTest, CommandsAndHelp) {
  client::FakeServer server;
  std::istringstream in("/help\n/nonsense\n");
  std::ostringstream out, err;
  Console console = {in, out, err, /*interactive=*/true};
  EXPECT_EQ(RunCli({"chat", server.flag()}, console), 0);
  EXPECT_THAT(err.str(), HasSubstr("/reset  forget"));
  EXPECT_THAT(err.str(), HasSubstr("unknown command /nonsense"));
  EXPECT_TRUE(server.requests().empty());
}

TEST(ChatCommandTest, APathFromAPipeIsATurn) {
  client::FakeServer server;
  const client::CliRun run =
      client::RunCliWith({"chat", server.flag()}, "/help\n/etc/fstab: what is it?\n/exit\nunread\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "t0 t1 t2 t3\n");
  EXPECT_THAT(run.err, HasSubstr("/reset  forget"));
  ASSERT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(server.requests()[0].messages().messages(0).content(), "/etc/fstab: what is it?");
}

TEST(ChatCommandTest, NeedsAChatTemplate) {
  client::FakeServer server;
  server.model.set_has_chat_template(false);
  const client::CliRun run = client::RunCliWith({"chat", server.flag()}, "Hello\n");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("--chat_template=FILE"));
}

TEST(ChatCommandTest, WhatItCannotShowIsNotOffered) {
  const client::CliRun run = client::RunCliWith({"chat", "--return_expert_paths"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--return_expert_paths"));
  EXPECT_THAT(client::RunCliWith({"help", "chat"}).out, testing::Not(HasSubstr("expert_paths")));
}

}  // namespace
}  // namespace switchyard::cli
