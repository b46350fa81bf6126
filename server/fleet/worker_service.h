// The workers' gRPC service: their links and the rendezvous stores.
//
// A link converts messages to calls of LinkEvents, and calls of WorkerClient to messages.  The link of a training
// worker (by its registration) uses TrainerEvents and TrainerClient, that of a worker that does both uses all four.
// Events of one link come in order, on gRPC's threads; OnLinkLost or OnTrainerLost, or both, are called exactly once,
// last.  A link's first message must be its registration, within seconds and of at most 64 KB; a second registration is
// refused.  Nothing is parsed before the link has shown a token.  Messages that only the other kind of worker may send
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
  // Called on gRPC's threads when a worker from elsewhere has shown the token, with gRPC's name of its peer; may be
  // empty.
  std::function<void(const std::string& peer)> on_joined;
};

// Context that all links share.
struct LinkContext {
  LinkEvents* events;
  TrainerEvents* trainers;  // null if the server does not train
  fleet::EngineSettings settings;
  Admission admission;
};

// Every method is raw: strangers' bytes are counted and parsed here, and errors say what is wrong with them.
using RawWorkerService =
    v1::WorkerService::WithRawCallbackMethod_Link<v1::WorkerService::WithRawCallbackMethod_StoreSet<
        v1::WorkerService::WithRawCallbackMethod_StoreGet<v1::WorkerService::Service>>>;

class WorkerServiceImpl final : public RawWorkerService {
 public:
  // All borrowed; they outlive the gRPC server.  `trainers`: null if the server does not train.
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
