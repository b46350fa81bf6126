// A simulated worker: it registers, sends heartbeats, takes commands in order, and begins again when its link ends.
// What it serves or trains is its derived classes' work.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "scheduler/fleet/worker_info.h"
#include "switchyard/v1/worker.pb.h"
#include "tests/simulation/core/process.h"
#include "tests/simulation/net/connection.h"

namespace switchyard::simulation {

class ServerProcess;

class WorkerProcess : public Process, public Connection::End {
 public:
  struct Identity {
    std::string role;    // fleet::WorkerInfo::role
    int index = 0;       // of its kind
    bool local = false;  // started by the server
    std::string token;   // with which it joins
  };
  // Borrows the server, which outlives it.
  WorkerProcess(World* world, ServerProcess* server, Identity identity);

  void Boot();
  // Its connection breaks, without a cause that a process would see.
  void BreakLink(const std::string& why);
  // How many times slower it is than others.
  void set_slowness(int slowness) { slowness_ = slowness; }

  const std::string& role() const { return identity_.role; }
  int index() const { return identity_.index; }
  bool local() const { return identity_.local; }
  int64_t pid() const { return pid_; }  // of its life, or of the last one
  Host& host() { return host_; }
  std::string name() const;
  // Call every 100 ms or so.
  void CheckKeepalive();

  void OnBytes(std::string bytes) override;
  void OnEnd(const absl::Status& status) override;

 protected:
  void OnDeath(const std::string& how) override;
  virtual void Describe(fleet::WorkerInfo* info) const = 0;
  virtual void Take(const v1::LinkResponse& message) = 0;
  // The link has ended, or the process: everything that came by it is void.
  virtual void EndSession() = 0;
  // The server has taken the registration.
  virtual void BeginSession() {}

  // Sends a message; drops it without a link.
  void Say(const v1::LinkRequest& message);
  void SetInStore(const std::string& token, const std::string& key, std::function<void(absl::Status)> done);
  void AwaitInStore(const std::string& token, const std::vector<std::string>& keys, absl::Duration limit,
                    std::function<void(absl::Status)> done);
  int slowness() const { return slowness_; }
  bool registered() const { return registered_; }

  ServerProcess& server_;

 private:
  void Connect();
  void Drain();
  void Beat(uint64_t session);
  void OnSessionEnd(const absl::Status& status);

  const Identity identity_;
  Host host_;
  int64_t pid_ = 0;
  int slowness_ = 1;
  std::shared_ptr<Connection> connection_;
  std::deque<std::string> arrived_;
  bool draining_ = false, registered_ = false;
  uint64_t session_ = 0;
  absl::Time connected_ = absl::InfinitePast();
  absl::Duration pause_;
  std::unique_ptr<absl::Status> end_;  // of the link, once what came before is read
};

}  // namespace switchyard::simulation
