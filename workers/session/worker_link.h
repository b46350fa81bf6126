// The worker's side of the link: registers with the server, takes its commands, answers; and the rendezvous store by
// RPC.
//
// Three kinds of threads: gRPC's (messages in and out), one for heartbeats (so that a long step is not taken for a
// death), and the caller of Run, on which commands are taken.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/support/channel_tls.h"
#include "workers/session/link_role.h"

namespace switchyard::worker {

class LinkSession;

// Stands for the address by which this host reaches the server, or the members of its group on other machines.
inline constexpr char kAutoAddress[] = "auto";

struct LinkOptions {
  std::string metrics_host;  // of the metrics' page; 0.0.0.0 or ::, every address of this machine
  int metrics_port = -1;     // -1: there is none
  std::string server;        // HOST:PORT
  std::string socket;        // abstract socket of this machine by which to reach it; empty: by HOST:PORT
  rpc::TlsFiles tls;         // of the link to HOST:PORT
  std::string join_token;
  int local_index = -1;
  std::string address = kAutoAddress;  // where the other ranks reach this worker
  bool insecure = false;               // a plaintext link may go to a public address
};

// Serves until the server refuses this worker (its status), the link breaks for good, or Stop is called from a signal
// (OK).  Blocks.
class WorkerLink {
 public:
  // role: borrowed.
  WorkerLink(LinkOptions options, LinkRole* role);
  ~WorkerLink();
  absl::Status Run();
  // Any thread.
  void Stop();

 private:
  absl::Status RunSession();

  const LinkOptions options_;
  LinkRole* const role_;
  absl::Mutex mu_;
  std::shared_ptr<LinkSession> session_ ABSL_GUARDED_BY(mu_);  // shared with the thread that runs it
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::worker
