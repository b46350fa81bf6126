#include "workers/train/packing/repack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/call_tag.h"
#include "workers/tensor/copy_bytes.h"
#include "workers/train/job/rank_agreement.h"

namespace switchyard::train {
namespace {

// The tensors of an expert that are moved, in the same order on all ranks.  blocks: of a layer.
std::vector<TensorView> PartsOf(absl::Span<ParameterBlock* const> blocks, int32_t expert) {
  std::vector<TensorView> parts;
  for (const ParameterBlock* block : blocks) {
    if (block->expert != expert) continue;
    for (const auto part : StateOf(*block)) parts.push_back((block->*part).view());
  }
  return parts;
}

int64_t BytesOf(absl::Span<const TensorView> parts) {
  int64_t bytes = 0;
  for (const TensorView& part : parts) bytes += part.NumElements() * DTypeBytes(part.dtype());
  return bytes;
}

// Copies parts to a message, or back.
void CopyParts(absl::Span<const TensorView> parts, char* message, bool pack) {
  for (const TensorView& part : parts) {
    const int64_t bytes = BytesOf({part});
    CopyBytes(pack ? message : part.raw(), pack ? part.raw() : message, bytes);
    message += bytes;
  }
}

void Append(std::vector<TensorView> from, std::vector<TensorView>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

Repack::Repack(const ExpertGroups& groups, Parameters* parameters, int packing)
    : groups_(groups), parameters_(parameters), packing_(packing) {}

absl::StatusOr<std::unique_ptr<Repack>> Repack::Prepare(const ExpertGroups& groups, Parameters* parameters,
                                                        const RepackOptions& options, absl::Time deadline) {
  comm::Communicator* const world = groups.group().world;
  RETURN_IF_ERROR(CheckPacking(world->world(), options.packing));
  std::unique_ptr<Repack> repack(new Repack(groups, parameters, options.packing));
  repack->PlanMoves();
  RankWord room;
  room.SetStatus(repack->Allocate(options));
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(world, room, deadline - absl::Now()));
  repack->refusal_ = std::string(FirstError(words).message());
  if (!repack->refusal_.empty()) repack->experts_ = {};
  return repack;
}

void Repack::PlanMoves() {
  const TrainerGroup& group = groups_.group();
  const int world = group.world->world(), holders = group.experts->world(), experts = group.layout->num_experts();
  residents_ = PackedResidents(experts, world, packing_, group.world->rank());
  const int first = group.world->rank() - group.experts->rank();  // of the old group
  for (int to = 0; to < holders; ++to) {
    for (const int32_t expert : PackedResidents(experts, world, packing_, first + to)) {
      const int from = group.layout->Places(expert)[0].rank;
      if (from != to) moves_.push_back({.expert = expert, .from = from, .to = to});
    }
  }
}

absl::Status Repack::Allocate(const RepackOptions& options) {
  const int me = groups_.group().experts->rank();
  int64_t added = 0, sent = 0;
  for (const Move& move : moves_) {
    if (move.to == me) ++added;
    if (move.from == me) ++sent;
  }
  const auto staying = static_cast<int64_t>(residents_.size()) - added;
  const int64_t layers = std::max<int64_t>(1, parameters_->model().config().num_moe_layers());
  const auto needed = [&](bool offload) {  // with the messages of a layer
    return parameters_->BytesOfExperts({.added = added, .staying = staying, .offload = offload}) +
           parameters_->BytesOfExperts({.added = added + sent}) / layers;
  };
  const bool offload = options.open_offload != nullptr && (options.offloads || needed(false) > options.available_bytes);
  if (const int64_t bytes = needed(offload); bytes > options.available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(added, " more experts a layer take ", bytes, " bytes",
                                                     offload ? ", with masters and moments in a file, " : ", ",
                                                     std::max<int64_t>(options.available_bytes, 0), " are available"));
  }
  ASSIGN_OR_RETURN(experts_, parameters_->AllocateExperts(residents_, offload ? options.open_offload : nullptr));
  return absl::OkStatus();
}

absl::Status Repack::BringLayer(int32_t layer, absl::Span<ParameterBlock* const> from,
                                absl::Span<ParameterBlock* const> to, absl::Time deadline) {
  comm::Communicator* const group = groups_.group().experts;
  const int me = group->rank();
  std::vector<std::vector<TensorView>> send(group->world()), recv(group->world());
  for (const Move& move : moves_) {
    if (move.from == me) Append(PartsOf(from, move.expert), &send[move.to]);
    if (move.to == me) Append(PartsOf(to, move.expert), &recv[move.from]);
  }
  std::vector<comm::Message> out(group->world());
  for (int r = 0; r < group->world(); ++r) {
    if (r == me) continue;
    out[r] = group->NewMessage(BytesOf(send[r]));
    CopyParts(send[r], out[r].payload(), /*pack=*/true);
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      group->AllToAllV({.deadline = deadline, .tag = comm::CallTag(comm::CallUse::kRepack, layer)}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < group->world(); ++r) {
    if (r == me) continue;
    const comm::Message& message = work->received()[r];
    if (message.bytes() != BytesOf(recv[r])) {
      return absl::InternalError(absl::StrCat("repack: rank ", r, " of the group sent ", message.bytes(),
                                              " bytes of layer ", layer, ", expected ", BytesOf(recv[r])));
    }
    CopyParts(recv[r], message.payload(), /*pack=*/false);
  }
  return absl::OkStatus();
}

absl::Status Repack::Bring(absl::Time deadline) {
  RETURN_IF_ERROR(parameters_->BringExperts(
      &experts_,
      [&](int32_t layer, absl::Span<ParameterBlock* const> from, absl::Span<ParameterBlock* const> to) -> absl::Status {
        return BringLayer(layer, from, to, deadline);
      }));
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> all,
                   groups_.group().world->Barrier({.comm_class = comm::CommClass::kControl, .deadline = deadline}));
  return all->Wait();
}

absl::StatusOr<std::unique_ptr<ExpertGroups>> Repack::Run(absl::Time deadline) {
  SY_CHECK(refusal_.empty());
  comm::Communicator* const world = groups_.group().world;
  absl::StatusOr<std::unique_ptr<ExpertGroups>> groups =
      ExpertGroups::Make(world, groups_.group().layout->num_experts(), packing_, deadline);
  absl::Status status = groups.status();
  if (status.ok()) status = Bring(deadline);
  if (!status.ok()) {
    if (world->world() > 1) world->Abort(status.message());
    return status;
  }
  parameters_->AdoptExperts(std::move(experts_));
  return groups;
}

}  // namespace switchyard::train
