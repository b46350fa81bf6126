#include "server/fleet/worker_service.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/link/fleet_codec.h"
#include "proto/link/link_protocol.h"
#include "proto/link/placement_codec.h"
#include "proto/link/step_result_codec.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/peer_name.h"
#include "server/fleet/link_client.h"
#include "server/fleet/link_events.h"
#include "server/jobs/trainer_convert.h"

namespace switchyard::server {
namespace {

constexpr int kHeartbeatMs = 250;
constexpr size_t kMostRegisterBytes = size_t{64} << 10;  // a registration has some hundred
constexpr size_t kPositionBytes = 1024;                  // of a row's logprobs
constexpr int64_t kMostPathExperts = 8192;               // of a row in all layers: 94 layers of 8 have 752
constexpr int32_t kMostKvBlocks = 1 << 24;  // used of a worker's: the scheduler keeps some 100 bytes of each
constexpr size_t kMostErrorBytes = 1024;
constexpr size_t kMostStoreBytes = size_t{64} << 10;  // of a call beside values: keys and a token

// Checks the length of a call's request, then parses it.
absl::Status ParseCall(const grpc::ByteBuffer& request, size_t limit, google::protobuf::Message* message) {
  if (request.Length() <= limit) return rpc::ParseRaw(request, message);
  return absl::InvalidArgumentError(
      absl::StrCat("rendezvous: a message of ", request.Length(), " bytes, limit ", limit));
}

// Returns how many bytes parts of a result may have for each row: its logprobs, and its experts in every layer.  The
// numbers of a registration are checked only later, so their product is bounded here.
size_t RowBytes(const fleet::WorkerInfo& info) {
  const auto experts = int64_t{std::max(info.num_moe_layers, 0)} * std::max(info.experts_per_token, 0);
  return kPositionBytes + static_cast<size_t>(std::min(experts, kMostPathExperts)) * sizeof(int16_t);
}

// Logs at most one line in ten seconds, as strangers may come fast.
void WarnOfStranger(const std::string& peer, const absl::Status& status) {
  ABSL_CONST_INIT static absl::Mutex mu(absl::kConstInit);
  static absl::Time next = absl::InfinitePast();
  absl::MutexLock lock(&mu);
  if (MonotonicNow() < next) return;
  next = MonotonicNow() + absl::Seconds(10);
  LogWarn("a worker from ", DirectPeer(peer), " is refused: ", status.message());
}

absl::string_view NameOf(const v1::LinkRequest& message) {
  const google::protobuf::FieldDescriptor* field =
      message.GetReflection()->GetOneofFieldDescriptor(message, message.GetDescriptor()->oneof_decl(0));
  return field == nullptr ? absl::string_view("nothing") : absl::string_view(field->name());
}

class Link final : public LinkReactor {
 public:
  Link(WorkerId id, std::string peer, const LinkContext* context, PendingLinks* pending_links)
      : id_(id),
        peer_(std::move(peer)),
        context_(*context),
        pending_links_(pending_links),
        client_(std::make_shared<LinkClient>(this)) {
    if (const absl::Status room = pending_links_->Enter(id_, client_, peer_, MonotonicNow()); room.ok()) {
      StartRead(&incoming_);
    } else {
      client_->Close(room);
    }
  }

  void OnReadDone(bool ok) override {
    absl::Status status = ok ? Parse() : absl::CancelledError("the worker closed its link");
    if (status.ok()) status = Handle();
    if (!status.ok()) return client_->Close(status);
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override { client_->WriteDone(ok); }
  void OnCancel() override { client_->Close(absl::CancelledError("the worker's connection broke")); }
  void OnDone() override {
    pending_links_->Leave(id_);
    client_->Detach();
    const std::string why = refused_.empty() ? "its link ended" : absl::StrCat("its link was ended: ", refused_);
    if (trains_) context_.trainers->OnTrainerLost(id_, why);
    if (serves_) context_.events->OnLinkLost(id_, why);
    delete this;
  }

 private:
  // An error of these methods closes the link.
  absl::Status Parse() {
    absl::Status status;
    if (!registered_ && incoming_.Length() > kMostRegisterBytes) {
      status =
          absl::InvalidArgumentError(absl::StrCat("a link's first message has ", incoming_.Length(), " bytes, limit ",
                                                  kMostRegisterBytes, ": a link begins with its registration"));
    } else {
      status = rpc::ParseRaw(incoming_, &request_);
    }
    incoming_.Clear();
    return status;
  }

  absl::Status Handle() {
    if (request_.has_register_() == registered_) {
      return absl::InvalidArgumentError(registered_ ? "a second registration on one link"
                                                    : "a link begins with its registration");
    }
    if (request_.has_register_()) return HandleRegister(request_.register_());
    if (std::optional<AttemptReport> report = ReportOf(request_); report.has_value()) {
      if (!trains_) return Refuse("a serving worker says what a training one would");
      context_.trainers->OnTraining(id_, report->epoch, std::move(report->report));
      return absl::OkStatus();
    }
    if (!serves_) return HandleOfTrainer();
    switch (request_.message_case()) {
      case v1::LinkRequest::kHeartbeat:
        context_.events->OnHeartbeat(id_);
        break;
      case v1::LinkRequest::kLoadProgress:
        context_.events->OnLoadProgress(id_, link::FromProto(request_.load_progress()));
        break;
      case v1::LinkRequest::kGroupReady:
        return HandleReady(link::FromProto(request_.group_ready()));
      case v1::LinkRequest::kStepResult:
        HandleResult(request_.step_result());
        break;
      case v1::LinkRequest::kStepPart:
        return KeepPart();
      case v1::LinkRequest::kGroupFault:
        context_.events->OnGroupFault(id_, request_.group_fault().epoch(), request_.group_fault().message());
        break;
      case v1::LinkRequest::kExpertReport:
        return HandleReport(request_.expert_report());
      case v1::LinkRequest::kProfilePart:
        HandleProfile(request_.mutable_profile_part());
        break;
      default:
        break;  // a newer worker's message
    }
    return absl::OkStatus();
  }

  absl::Status HandleOfTrainer() {
    if (request_.has_heartbeat()) context_.trainers->OnTrainerHeartbeat(id_);
    const bool known = request_.has_heartbeat() || request_.message_case() == v1::LinkRequest::MESSAGE_NOT_SET;
    return known ? absl::OkStatus() : Refuse(absl::StrCat("a training worker says ", NameOf(request_)));
  }
  absl::Status Refuse(const std::string& why) {
    refused_ = why;
    return absl::InvalidArgumentError(why);
  }

  absl::Status HandleReady(fleet::GroupReady ready) {
    if (ready.num_kv_blocks < 1) {
      return Refuse(
          absl::StrCat("a worker is ready with ", ready.num_kv_blocks, " KV blocks: there must be at least 1"));
    }
    ready.num_kv_blocks = std::min(ready.num_kv_blocks, kMostKvBlocks);
    context_.events->OnGroupReady(id_, ready);
    return absl::OkStatus();
  }

  // A step's result may come in parts, followed by the result itself.
  absl::Status KeepPart() {
    part_bytes_ += sizeof(v1::StepPart) + request_.ByteSizeLong();
    // A step has at most as many positions as rows and sequences together; a position has up to 21 entries of at most
    // 19 B.
    const size_t limit = row_bytes_ * (context_.settings.max_batched_tokens + context_.settings.max_num_seqs);
    if (part_bytes_ > limit) {
      return Refuse(absl::StrCat("parts of one step's result have ", part_bytes_,
                                 " bytes, the logprobs and experts of all its rows at most ", limit));
    }
    parts_.push_back(std::move(*request_.mutable_step_part()));
    return absl::OkStatus();
  }
  void HandleResult(const v1::StepResult& message) {
    batching::RankResult result = link::FromProto(message);
    for (const v1::StepPart& part : std::exchange(parts_, {})) {
      if (part.step() == message.step() && part.group_epoch() == message.group_epoch()) link::AddPart(part, &result);
    }
    part_bytes_ = 0;
    context_.events->OnStepResult(id_, message.group_epoch(), message.step(), std::move(result));
  }

  void HandleProfile(v1::ProfilePart* message) {
    context_.events->OnProfilePart(id_, message->group_epoch(),
                                   {.request = message->request(),
                                    .offset = message->offset(),
                                    .total_bytes = message->total_bytes(),
                                    .data = std::move(*message->mutable_data()),
                                    .error = message->error().substr(0, kMostErrorBytes)});
  }

  absl::Status HandleReport(const v1::ExpertReport& message) {
    absl::StatusOr<placement::ExpertReport> report = link::FromProto(message, num_moe_layers_, num_experts_);
    if (!report.ok()) return absl::InvalidArgumentError(absl::StrCat("expert report: ", report.status().message()));
    context_.events->OnExpertReport(id_, message.group_epoch(),
                                    std::make_shared<const placement::ExpertReport>(*std::move(report)));
    return absl::OkStatus();
  }

  absl::Status HandleRegister(const v1::Register& message) {
    fleet::WorkerInfo info = link::FromProto(message);
    info.peer = peer_;
    if (absl::Status known = context_.admission.tokens.Check(info.join_token, &info.local_index); !known.ok()) {
      WarnOfStranger(peer_, known);
      return known;
    }
    if (message.protocol_version() != link::kProtocolVersion) {
      return absl::FailedPreconditionError(absl::StrCat("worker speaks protocol ", message.protocol_version(),
                                                        ", this server ", link::kProtocolVersion));
    }
    RETURN_IF_ERROR(CheckRole(info.role));
    registered_ = true;
    serves_ = info.role != fleet::kRoleTrain;
    trains_ = !info.role.empty() && context_.trainers != nullptr;
    num_moe_layers_ = info.num_moe_layers;
    num_experts_ = info.num_experts;
    row_bytes_ = RowBytes(info);
    pending_links_->Leave(id_);
    v1::LinkResponse reply;
    reply.mutable_registered()->set_heartbeat_ms(kHeartbeatMs);
    *reply.mutable_registered()->mutable_options() = link::ToProto(context_.settings);
    client_->Send(reply);
    if (info.local_index < 0 && context_.admission.on_joined) context_.admission.on_joined(peer_);
    info.also_trains = serves_ && trains_;
    if (trains_) context_.trainers->OnTrainer(id_, client_, info);
    if (serves_) context_.events->OnRegister(id_, client_, std::move(info));
    return absl::OkStatus();
  }
  absl::Status CheckRole(const std::string& role) const {
    // A worker with both roles only serves if the server has no jobs.
    if (role.empty() || role == fleet::kRoleBoth) return absl::OkStatus();
    if (role != fleet::kRoleTrain)
      return absl::InvalidArgumentError(absl::StrCat("role ", Quote(role), ": must be empty, train or both"));
    if (context_.trainers != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "this server has no training workers (--local_train_workers, --train_workers)");
  }

  const WorkerId id_;
  const std::string peer_;
  const LinkContext& context_;
  PendingLinks* const pending_links_;
  const std::shared_ptr<LinkClient> client_;  // shared with the group's member
  bool registered_ = false;                   // of the reading thread
  std::string refused_;                       // likewise: why a message ended the link
  bool serves_ = true, trains_ = false;       // likewise
  int num_moe_layers_ = 0, num_experts_ = 0;  // likewise: of its model
  size_t row_bytes_ = kPositionBytes;         // likewise: RowBytes
  grpc::ByteBuffer incoming_;
  v1::LinkRequest request_;
  std::vector<v1::StepPart> parts_;  // parts of the coming result
  size_t part_bytes_ = 0;            // in parts_
};

}  // namespace

LinkReactor* WorkerServiceImpl::Link(grpc::CallbackServerContext* context) {
  return new switchyard::server::Link(next_id_.fetch_add(1), context->peer(), &links_, &pending_links_);
}

grpc::ServerUnaryReactor* WorkerServiceImpl::StoreSet(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::StoreSetRequest message;
  absl::Status status = ParseCall(*request, GroupStore::kMaxValueBytes + kMostStoreBytes, &message);
  if (status.ok()) status = store_->Set(message.store_token(), message.key(), message.value());
  if (status.ok()) *response = rpc::SerializeRaw(v1::StoreSetResponse());
  reactor->Finish(rpc::ToGrpcStatus(status, ""));
  return reactor;
}

grpc::ServerUnaryReactor* WorkerServiceImpl::StoreGet(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  v1::StoreGetRequest message;
  if (const absl::Status status = ParseCall(*request, kMostStoreBytes, &message); !status.ok()) {
    reactor->Finish(rpc::ToGrpcStatus(status, ""));
    return reactor;
  }
  const absl::Duration timeout = std::min(absl::Milliseconds(message.timeout_ms()), absl::Duration(absl::Minutes(1)));
  store_->Get(message.store_token(), {message.keys().begin(), message.keys().end()}, MonotonicNow() + timeout,
              [reactor, response](GroupStore::Values values) {
                v1::StoreGetResponse found;
                if (values.ok()) {
                  for (std::string& value : *values) found.add_values(std::move(value));
                  *response = rpc::SerializeRaw(found);
                }
                reactor->Finish(rpc::ToGrpcStatus(values.status(), ""));
              });
  return reactor;
}

}  // namespace switchyard::server
