// switchyard-server: serves one Mixture-of-Experts model over gRPC.
#include <malloc.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/support/join_token.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/flags/program_flags.h"
#include "scheduler/base/log.h"
#include "scheduler/base/process_guard.h"
#include "scheduler/base/version.h"
#include "server/config.h"
#include "server/server.h"
#include "server/server_flags.h"
#include "server/service_manager.h"

namespace switchyard::server {
namespace {

constexpr int kExitBadConfig = 2;
constexpr size_t kMinTokenBytes = 16;
constexpr int64_t kOwnOpenFiles = 384;  // besides the connections of clients and workers
constexpr int64_t kFilesOfConnection =
    4;  // its socket, both ends of the pair behind the relay, HTTP's copy for answers

// Checks what the flags have set, as a whole; reports every problem at once.
absl::Status Finish(ServerConfig* config) {
  const absl::StatusOr<std::string> token = rpc::ReadJoinToken(config->join_token_file, kMinTokenBytes);
  if (token.ok()) config->join_token = *token;
  const absl::Status finished = config->Finish();
  const int64_t workers = int64_t{config->workers} + config->train_workers;
  const int64_t own_files = kOwnOpenFiles + 2 * kFilesOfConnection * workers;
  const int ports = 1 + (config->admin_port >= 0 ? 1 : 0) + (config->http_port >= 0 ? 1 : 0);
  const absl::Status guarded =
      GuardProcess(kFilesOfConnection * ports * config->max_connections + own_files,
                   absl::StrCat("--max_connections=", config->max_connections, " at each of ", ports, " ports (",
                                kFilesOfConnection, " a connection) and ", own_files, " of its own"));
  std::vector<std::string> problems;
  for (const absl::Status& status : {finished, token.status(), guarded}) {
    if (!status.ok()) problems.emplace_back(status.message());
  }
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

int Complain(const absl::Status& status) {
  const std::string text(status.message());
  std::fprintf(stderr, "switchyard-server: %s\n", text.c_str());
  return kExitBadConfig;
}

// Waits for SIGINT or SIGTERM (true), or for the server to fail (false).  On SIGHUP the server reads keys and
// certificates again, and opens the request log again.
bool WaitForSignal(const sigset_t& signals, Server& server) {
  for (;;) {
    const timespec poll = {0, 50 * 1000 * 1000};
    const int signal = sigtimedwait(&signals, nullptr, &poll);
    if (signal == SIGHUP) {
      server.ReloadFiles();
    } else if (signal > 0) {
      return true;
    }
    if (server.failed().HasBeenNotified()) return false;
  }
}

int Main(ServerConfig config) {
  SetLogName("server");
  if (const absl::Status status = Finish(&config); !status.ok()) return Complain(status);
  // Blocked in every thread; only WaitForSignal takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigset_t awaited = signals;
  // Else its terminal is gone; but a service has none.
  const bool has_files = !config.api_keys_file.empty() || !config.tls_cert.empty() || !config.request_log.empty();
  if (has_files || HasServiceManager()) sigaddset(&awaited, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(std::move(config));
  if (!server.ok()) return Complain(server.status());
  if (!WaitForSignal(awaited, **server)) {
    (*server)->Stop();
    return Complain(absl::InvalidArgumentError((*server)->failure()));
  }
  TellServiceManager("STOPPING=1\nSTATUS=ending running requests");
  LogInfo("stopping: running requests may end, new ones are refused");
  (*server)->Drain([&signals] {
    const timespec now = {0, 0};
    return sigtimedwait(&signals, nullptr, &now) > 0;
  });
  (*server)->Stop();
  LogInfo("stopped");
  // Everything is closed.  Skips the remaining destructors, since the metrics page's would take seconds.
  std::_Exit(0);
}

}  // namespace
}  // namespace switchyard::server

int main(int argc, char** argv) {
  // Each arena keeps what its threads have freed: with one for most threads, as is the default, large texts took twice
  // the memory.
  mallopt(M_ARENA_MAX, 2);
  switchyard::rpc::SetUpLibraries();
  switchyard::server::ServerConfig config;
  config.version = switchyard::Version();
  switchyard::FlagSet flags = switchyard::server::FlagsOfServer(&config);
  switchyard::ParseFlagsOrExit(
      argc, argv,
      {.name = "switchyard-server",
       .version = switchyard::Version(),
       .summary =
           "serves a Mixture-of-Experts model over gRPC.\n\n  switchyard-server --model=DIR [--local_workers=2]"},
      &flags);
  return switchyard::server::Main(std::move(config));
}
