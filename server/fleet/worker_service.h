// The service of the workers: their links and the rendezvous store, as gRPC reactors.
//
// A link turns messages into calls of LinkEvents, and WorkerClient calls into messages; the link of a training worker,
// whose registration says so, uses TrainerEvents and TrainerClient, and the link of a worker that does both uses both.
// Events of one link come in order, on gRPC's threads; OnLinkLost or OnTrainerLost, or both, are called exactly once,
// last.  A link's first message is its registration, within seconds and of at most 64 KB, and there is no second one;
// before the link has shown a token nothing else of it is parsed.  Messages that only the other kind of worker may send
// end the link.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "scheduler/fleet/engine_settings.h"
#include "server/admission/join_tokens.h"
#include "server/fleet/group_store.h"
#include "server/fleet/pending_links.h"
#include "server/fleet/worker_client.h"
#include "server/jobs/trainer_client.h"
#include "switchyard/v1/worker.grpc.pb.h"

namespace switchyard::server {

class LinkEvents;

// Which workers may join.
struct Admission {
  JoinTokens tokens;
  // A worker from elsewhere has shown the token; its peer as gRPC names it.  On gRPC's threads; may be empty.
  std::function<void(const std::string& peer)> on_joined;
};

// What all links share.
struct LinkContext {
  LinkEvents* events;
  TrainerEvents* trainers;  // null where none are wanted
  fleet::EngineSettings settings;
  Admission admission;
};

// Every method is raw: a stranger's bytes are counted and parsed here, and get an answer that says what is wrong.
using RawWorkerService =
    v1::WorkerService::WithRawCallbackMethod_Link<v1::WorkerService::WithRawCallbackMethod_StoreSet<
        v1::WorkerService::WithRawCallbackMethod_StoreGet<v1::WorkerService::Service>>>;

class WorkerServiceImpl final : public RawWorkerService {
 public:
  // All borrowed; they outlive the gRPC server.  `trainers`: null where none are wanted.
  WorkerServiceImpl(LinkEvents* events, TrainerEvents* trainers, GroupStore* store, fleet::EngineSettings settings,
                    Admission admission = {})
      : store_(store), links_({events, trainers, std::move(settings), std::move(admission)}) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Link(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* StoreSet(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* StoreGet(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  // Ends links that do not register.  Call every 100 ms or so.
  void CheckTime(absl::Time now) { pending_links_.CheckTime(now); }

 private:
  GroupStore* const store_;
  const LinkContext links_;
  std::atomic<WorkerId> next_id_{1};
  PendingLinks pending_links_;
};

}  // namespace switchyard::server
