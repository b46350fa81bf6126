// The whole server: Start, Drain and Stop, with everything that runs in between.
//
//   text processor → metrics → engine loop, training subsystem → gRPC on three ports (of users, of jobs and
//   administration, of workers) → local workers → ready
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "server/admission/listener.h"
#include "server/api/admin_service.h"
#include "server/api/inference_service.h"
#include "server/api/request_context.h"
#include "server/config.h"
#include "server/engine/engine_loop.h"
#include "server/fleet/group_store.h"
#include "server/fleet/local_fleet.h"
#include "server/fleet/worker_service.h"
#include "server/front/front.h"
#include "server/http/http_api.h"
#include "server/jobs/api/training_subsystem.h"

namespace switchyard::server {

class Server {
 public:
  // Loads the text processor, listens, and starts the local workers.  InvalidArgument: bad configuration or model
  // files.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerConfig config);
  ~Server();

  int port() const { return users_->port(); }
  int http_port() const { return http_ == nullptr ? -1 : http_->port(); }
  int admin_port() const { return operators_ == nullptr ? -1 : operators_->port(); }
  int worker_port() const { return members_->port(); }
  int metrics_port() const { return metrics_port_; }
  // Notified when the start fails because a worker refused the model before it was first served.  After that a refusal
  // only ends readiness, until a later try succeeds.
  const absl::Notification& failed() const { return failed_; }
  std::string failure() const;

  // Reads --api_keys_file and the certificates again, where there are any, and logs how that went; bad ones leave the
  // old.  Opens --request_log again.
  void ReloadFiles();

  // Ends readiness and refuses new requests.  Waits for running ones, at most config.drain_timeout, or until `give_up`
  // (called every 50 ms) returns true.
  void Drain(const std::function<bool()>& give_up = [] { return false; });
  // Blocks until all threads and local workers are gone.
  void Stop();

 private:
  explicit Server(ServerConfig config) : config_(std::move(config)) {}
  absl::Status ExposeMetrics();
  absl::Status StartRooms();
  absl::Status Listen();
  absl::Status ListenHttp();
  // Lets the front pass connections to the ports, which are open.
  void Accept();
  std::vector<Listener*> listeners() const;
  void WarnOfOpenPorts() const;
  void Tick(absl::Time now);
  absl::Status StartWorkers();
  absl::Status StartServingWorkers(const std::string& server);
  void ShutDownGrpc();
  void SetReady(bool ready);
  void Fail(std::string text);

  ServerConfig config_;
  std::unique_ptr<const text::TextProcessor> text_;
  std::unique_ptr<ConstraintCompiler> constraints_;
  int64_t masks_made_ = 0;         // so far, as metrics have it
  double constraint_seconds_ = 0;  // likewise
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<KeyRing> keys_;              // null: no --api_keys_file
  std::unique_ptr<RequestObserver> observer_;  // null: no --request_log and no --otlp_endpoint
  GroupStore store_;
  std::string serving_token_;  // token of the serving group's store; used on the engine's thread
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<FrontPool> pool_, file_pool_;
  RequestContext request_context_;
  std::unique_ptr<InferenceServiceImpl> inference_;
  std::unique_ptr<AdminServiceImpl> admin_;
  std::unique_ptr<TrainingSubsystem> training_;
  std::unique_ptr<WorkerServiceImpl> workers_;
  std::unique_ptr<Front> front_;
  std::unique_ptr<ConnectionGate> page_gate_;              // of the metrics page, with TLS
  std::unique_ptr<Listener> users_, operators_, members_;  // members: workers; operators: null without --admin_port
  std::unique_ptr<HttpApi> http_;                          // null: no --http_port
  std::unique_ptr<LocalFleet> fleet_;
  int metrics_port_ = -1;
  int token_fd_ = -1;
  absl::Notification failed_;
  mutable absl::Mutex mu_;
  std::string failure_ ABSL_GUARDED_BY(mu_);
  int64_t refused_connections_ = 0, refused_texts_ = 0;  // already counted by the metrics
  bool stopped_ = false;
};

}  // namespace switchyard::server
