// `switchyard chat` as a person meets it: on a pseudo-terminal, against a server that answers by script.
#include <pty.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/fake_server.h"
#include "tests/e2e/process.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A program on a terminal of its own, 80 columns wide.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> args) {
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = 80;
    pid_ = forkpty(&keys_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execv(argv[0], argv.data());
      _exit(127);
    }
    screen_ = std::thread([this] { ReadScreen(); });
  }
  ~Terminal() {
    Wait();
    screen_.join();
    close(keys_);
  }

  void Type(const std::string& keys) {
    EXPECT_EQ(write(keys_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Waits until the program has shown `text` behind what earlier calls have found, and returns what came before it.
  std::string See(const std::string& text) {
    absl::MutexLock lock(&mu_);
    const auto shown = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || seen_.find(text, at_) < seen_.size(); };
    mu_.AwaitWithTimeout(absl::Condition(&shown), absl::Seconds(30));
    const size_t found = seen_.find(text, at_);
    EXPECT_NE(found, std::string::npos) << text << " is not in: " << seen_.substr(at_);
    if (found == std::string::npos) return "";
    const std::string before = seen_.substr(at_, found - at_);
    at_ = found + text.size();
    return before;
  }
  // The exit code, when it has ended.
  int Wait() {
    if (exit_code_ >= 0) return exit_code_;
    int status = 0;
    if (!WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, absl::Seconds(30))) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
    }
    return exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  void ReadScreen() {
    char bytes[4096];
    for (ssize_t got; (got = read(keys_, bytes, sizeof(bytes))) > 0;) {
      absl::MutexLock lock(&mu_);
      seen_.append(bytes, static_cast<size_t>(got));
    }
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }

  pid_t pid_ = -1;
  int keys_ = -1, exit_code_ = -1;
  std::thread screen_;
  absl::Mutex mu_;
  std::string seen_ ABSL_GUARDED_BY(mu_);
  size_t at_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class ChatTerminalTest : public testing::Test {
 protected:
  ChatTerminalTest() : dir_(fs::path(testing::TempDir()) / absl::StrCat("switchyard-chat-", getpid())) {
    fs::remove_all(dir_);
    setenv("TERM", "xterm", 1);
    setenv("XDG_STATE_HOME", dir_.c_str(), 1);
    setenv("EDITRC", "/dev/null", 1);
    setenv("LC_ALL", "C", 1);
  }
  ~ChatTerminalTest() override { fs::remove_all(dir_); }

  std::vector<std::string> Chat(const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> args = {Binary("switchyard"), "chat", server_.flag(), "--max_tokens=2"};
    args.insert(args.end(), flags.begin(), flags.end());
    return args;
  }
  std::string LastSaid() {
    const auto requests = server_.requests();
    if (requests.empty()) return "";
    const v1::Messages& messages = requests.back().messages();
    return messages.messages(messages.messages_size() - 1).content();
  }

  const fs::path dir_;
  client::FakeServer server_;
};

TEST_F(ChatTerminalTest, ArrowUpRecallsAndTheLineCanBeEdited) {
  {
    Terminal terminal(Chat());
    terminal.See("you> ");
    terminal.Type("hallo wörld\033[D\033[D\033[D\033[D\033[D\033[D\033[D\033[D\033[D\177e\r");
    terminal.See("t0 t1");
    EXPECT_EQ(LastSaid(), "hello wörld");
    terminal.See("you> ");
    terminal.Type("\033[A, again\r");
    terminal.See("t0 t1");
    EXPECT_EQ(LastSaid(), "hello wörld, again");
    terminal.See("you> ");
    terminal.Type("\004");
    EXPECT_EQ(terminal.Wait(), 0);
  }
  EXPECT_EQ(fs::status(dir_ / "switchyard/history").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  Terminal later(Chat());
  later.See("you> ");
  later.Type("\033[A\033[A\r");
  later.See("t0 t1");
  EXPECT_EQ(LastSaid(), "hello wörld");
  later.See("you> ");
  later.Type("/exit\r");
  EXPECT_EQ(later.Wait(), 0);
}

TEST_F(ChatTerminalTest, APasteIsOneTurn) {
  Terminal terminal(Chat({"--history=none"}));
  terminal.See("\033[?2004h");
  terminal.See("you> ");
  terminal.Type("\033[200~def f():\r  return 1\r\033[201~\r");
  terminal.See("t0 t1");
  EXPECT_EQ(LastSaid(), "def f():\n  return 1");
  terminal.See("you> ");
  terminal.Type("\004");
  EXPECT_EQ(terminal.Wait(), 0);
  EXPECT_EQ(server_.requests().size(), 1u);
  EXPECT_FALSE(fs::exists(dir_));
}

TEST_F(ChatTerminalTest, CtrlCStopsTheAnswerOrDropsTheLine) {
  server_.on_generate = [](grpc::ServerContext* context, const v1::GenerateRequest& request, auto* writer) {
    if (request.messages().messages_size() > 1) {
      writer->Write(client::Part(0, 0, "fine", true));
      return grpc::Status::OK;
    }
    writer->Write(client::Part(0, 0, "half"));
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  Terminal terminal(Chat());
  terminal.See("you> ");
  terminal.Type("begin\r");
  terminal.See("half");
  terminal.Type("\003");
  terminal.See("(stopped)");
  terminal.See("you> ");
  terminal.Type("never said");
  terminal.See("never said");
  terminal.Type("\003");
  terminal.See("(/exit or Ctrl-D leaves)");
  terminal.See("you> ");
  terminal.Type("said\r");
  terminal.See("fine");
  EXPECT_EQ(LastSaid(), "said");
  terminal.See("you> ");
  terminal.Type("\004");
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST_F(ChatTerminalTest, WithoutAHistoryItSaysWhyAndGoesOn) {
  Terminal terminal(Chat({"--history=/proc/nothing/history"}));
  terminal.See("no history is kept: /proc/nothing: ");
  terminal.See("you> ");
  terminal.Type("hello\r");
  terminal.See("t0 t1");
  terminal.See("you> ");
  terminal.Type("\004");
  EXPECT_EQ(terminal.Wait(), 0);
}

TEST_F(ChatTerminalTest, ADumbTerminalReadsPlainLines) {
  setenv("TERM", "dumb", 1);
  Terminal terminal(Chat());
  EXPECT_THAT(terminal.See("you> "), testing::Not(HasSubstr("\033")));
  terminal.Type("hello\r");
  terminal.See("t0 t1");
  EXPECT_EQ(LastSaid(), "hello");
  terminal.See("you> ");
  terminal.Type("\004");
  EXPECT_EQ(terminal.Wait(), 0);
}

}  // namespace
}  // namespace switchyard
