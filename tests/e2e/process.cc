#include "tests/e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace switchyard {

std::unique_ptr<Process> Process::Start(const std::vector<std::string>& args) {
  std::string path = "/tmp/switchyard-e2e-XXXXXX";
  const int log = mkstemp(path.data());
  if (log < 0) return nullptr;
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(log);
  if (pid < 0) return nullptr;
  return std::unique_ptr<Process>(new Process(pid, std::move(path)));
}

Process::~Process() {
  if (!exit_code_) {
    kill(pid_, SIGCONT);
    kill(pid_, SIGKILL);
    Wait(absl::Seconds(10));
  }
  unlink(path_.c_str());
}

void Process::Signal(int signal) const {
  if (!exit_code_) kill(pid_, signal);
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  if (exit_code_) return exit_code_;
  int status = 0;
  const bool ended = WaitUntil([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout);
  if (ended) exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string Process::Output() const {
  std::ifstream file(path_);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Process::WaitForOutput(const std::string& text, absl::Duration timeout) {
  bool found = false;
  WaitUntil(
      [&] {
        const bool ended = Wait(absl::ZeroDuration()).has_value();
        found = Output().find(text) != std::string::npos;
        return found || ended;
      },
      timeout);
  return found;
}

std::string Binary(const std::string& name) {
  const char* folder = std::getenv("SY_TEST_BIN_DIR");
  return absl::StrCat(folder != nullptr ? folder : "build/release/bin", "/", name);
}

}  // namespace switchyard
