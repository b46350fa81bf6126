// The local workers: processes that this server starts on this machine, and restarts when they die.
//
// A worker that exits with code 2 refuses its model, its flags or this machine's memory.  It writes the reason into an
// inherited in-memory file (--refusal_file) and to standard error, which it shares with the server.  Before Finalize a
// refusal is fatal: it is reported once, and the worker is not restarted; the same holds for a worker that ends again
// and again.  After Finalize the reason may pass (memory is short for a while, a file is being replaced), so a refusing
// worker is restarted like any other, after a pause (restart_pause.h).  A worker that is stopped (SIGSTOP) for a fifth
// of a second is killed, so that a group does not wait for it, whatever it was doing.  Worker `index` takes rank
// `index`. The workers die with the server (PR_SET_PDEATHSIG).  Thread-safe; a thread watches the children.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "scheduler/base/io/unique_fd.h"
#include "server/fleet/restart_pause.h"

namespace switchyard::server {

class LocalFleet {
 public:
  struct Options {
    std::string binary;
    // Arguments of worker `index`, without the program's name.
    std::function<std::vector<std::string>(int index)> args;
    int count = 0;
    std::string what = "worker";  // for messages
    // Number of ends of a worker that are fatal before Finalize; 0: no limit.
    int max_deaths_unfinalized = 0;
    // Called on the watching thread when a worker fails fatally, with a sentence.
    std::function<void(std::string)> on_fatal;
    // Called on the watching thread with each restart; may be null.  It must not block or call this object.
    std::function<void()> on_restart;
  };

  explicit LocalFleet(Options options);
  ~LocalFleet();
  LocalFleet(const LocalFleet&) = delete;
  LocalFleet& operator=(const LocalFleet&) = delete;

  absl::Status Start();
  // Ends the start, as the workers have served: from now on workers that end are always restarted.
  void Finalize() {
    absl::MutexLock lock(&mu_);
    finalized_ = true;
  }
  // Sends SIGKILL to worker `index` if it still is process `pid`; the worker will be restarted.
  void Kill(int index, int64_t pid);
  // Returns how process `pid`, worker `index` or its predecessor, ended: "signal 9 (Killed)", "exit code 1".  Empty
  // while it runs.
  std::string EndOf(int index, int64_t pid) const;
  // Sends SIGTERM to all, and SIGKILL to those that remain after `grace`; blocks until all are gone.  Nothing is
  // restarted afterwards.
  void Stop(absl::Duration grace);
  std::vector<pid_t> Pids() const;
  int64_t restarts() const {
    absl::MutexLock lock(&mu_);
    return restarts_;
  }

 private:
  struct Child {
    pid_t pid = -1;       // -1: not running
    pid_t last_pid = -1;  // the process before, and how it ended
    std::string last_end;
    absl::Time started;
    absl::Time start_at = absl::InfinitePast();
    RestartPause pause;
    int64_t oom_kills = 0;  // of the kernel, on this machine, before it started
    int deaths = 0;
    int looks_stopped = 0;  // looks in a row that found it stopped
    bool refused = false;
    UniqueFd refusal;  // the in-memory file for the reason of a refusal
  };

  absl::Status Spawn(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Kills a child that stands stopped.
  void EndIfStopped(int index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Watch();
  void Reap() ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the end of a child that was reaped.  Returns why that is fatal; empty if the worker will be restarted.
  std::string Reap(int index, int status, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  std::vector<Child> children_ ABSL_GUARDED_BY(mu_);
  bool finalized_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool watcher_done_ ABSL_GUARDED_BY(mu_) = false;
  int64_t restarts_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread watcher_;
};

}  // namespace switchyard::server
