#include "workers/train/repack.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/rank_agreement.h"

namespace switchyard {
namespace {

constexpr Tensor ParameterBlock::*kTravels[] = {&ParameterBlock::master, &ParameterBlock::mean,
                                                &ParameterBlock::mean_squares};

// What travels of an expert in a layer, in an order that all ranks share.
std::vector<TensorView> PartsOf(absl::Span<const ParameterBlock> blocks, int32_t layer, int32_t expert) {
  std::vector<TensorView> parts;
  for (const ParameterBlock& block : blocks) {
    if (block.layer != layer || block.expert != expert) continue;
    for (const auto part : kTravels) parts.push_back((block.*part).view());
  }
  return parts;
}

int64_t BytesOf(absl::Span<const TensorView> parts) {
  int64_t bytes = 0;
  for (const TensorView& part : parts) bytes += part.NumElements() * DTypeBytes(part.dtype());
  return bytes;
}

void Append(std::vector<TensorView> from, std::vector<TensorView>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

Repack::Repack(const ExpertGroups& groups, Parameters* parameters, int packing)
    : groups_(groups), parameters_(parameters), packing_(packing) {}

absl::StatusOr<std::unique_ptr<Repack>> Repack::Prepare(const ExpertGroups& groups, Parameters* parameters,
                                                        const RepackOptions& options, absl::Time deadline) {
  Communicator* const world = groups.group().world;
  RETURN_IF_ERROR(CheckPacking(world->world(), options.packing));
  std::unique_ptr<Repack> repack(new Repack(groups, parameters, options.packing));
  repack->PlanMoves();
  RankWord room;
  room.SetStatus(repack->Allocate(options.available_bytes));
  std::vector<RankWord> words;
  ASSIGN_OR_RETURN(words, ExchangeWords(world, room, deadline - absl::Now()));
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

absl::Status Repack::Allocate(int64_t available_bytes) {
  const int me = groups_.group().experts->rank();
  std::vector<int32_t> wanted;
  int64_t sent = 0;
  for (const Move& move : moves_) {
    if (move.to == me) wanted.push_back(move.expert);
    if (move.from == me) ++sent;
  }
  const auto count = static_cast<int64_t>(wanted.size());
  const int64_t layers = std::max<int64_t>(1, parameters_->model().config().num_moe_layers());
  // With the messages of a layer.
  const int64_t bytes = parameters_->BytesOfExperts(count) + parameters_->BytesOfExperts(count + sent) / layers;
  if (bytes > available_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(count, " more experts a layer take ", bytes, " bytes, ",
                                                     std::max<int64_t>(available_bytes, 0), " are available"));
  }
  ASSIGN_OR_RETURN(experts_, parameters_->AllocateExperts(std::move(wanted)));
  return absl::OkStatus();
}

absl::Status Repack::BringLayer(int32_t layer, absl::Time deadline) {
  Communicator* const group = groups_.group().experts;
  const int me = group->rank();
  std::vector<std::vector<TensorView>> send(group->world()), recv(group->world());
  for (const Move& move : moves_) {
    if (move.from == me) Append(PartsOf(parameters_->blocks(), layer, move.expert), &send[move.to]);
    if (move.to == me) Append(PartsOf(experts_.blocks, layer, move.expert), &recv[move.from]);
  }
  std::vector<Message> out(group->world());
  for (int r = 0; r < group->world(); ++r) {
    if (r == me) continue;
    out[r] = group->NewMessage(BytesOf(send[r]));
    char* to = out[r].payload();
    for (const TensorView& part : send[r]) {
      const int64_t bytes = BytesOf({part});
      std::memcpy(to, part.raw(), static_cast<size_t>(bytes));
      to += bytes;
    }
  }
  std::unique_ptr<Work> work;
  ASSIGN_OR_RETURN(work, group->AllToAllV({.comm_class = CommClass::kAllToAll, .deadline = deadline}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < group->world(); ++r) {
    if (r == me) continue;
    const Message& message = work->received()[r];
    if (message.bytes() != BytesOf(recv[r])) {
      return absl::InternalError(absl::StrCat("repack: rank ", r, " of the group sent ", message.bytes(),
                                              " bytes of layer ", layer, ", expected ", BytesOf(recv[r])));
    }
    const char* from = message.payload();
    for (const TensorView& part : recv[r]) {
      const int64_t bytes = BytesOf({part});
      std::memcpy(part.raw(), from, static_cast<size_t>(bytes));
      from += bytes;
    }
    bytes_received_ += message.bytes();
  }
  return absl::OkStatus();
}

absl::Status Repack::Bring(absl::Time deadline) {
  const std::vector<LayerConfig>& layers = parameters_->model().config().layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].moe) RETURN_IF_ERROR(BringLayer(static_cast<int32_t>(i), deadline));
  }
  RETURN_IF_ERROR(parameters_->PublishExperts(&experts_));
  std::unique_ptr<Work> all;
  ASSIGN_OR_RETURN(all, groups_.group().world->Barrier({.comm_class = CommClass::kControl, .deadline = deadline}));
  return all->Wait();
}

absl::StatusOr<std::unique_ptr<ExpertGroups>> Repack::Run(absl::Time deadline) {
  SY_CHECK(refusal_.empty());
  Communicator* const world = groups_.group().world;
  absl::StatusOr<std::unique_ptr<ExpertGroups>> groups =
      ExpertGroups::Make(world, groups_.group().layout->num_experts(), packing_, deadline);
  absl::Status status = groups.status();
  if (status.ok()) status = Bring(deadline);
  if (!status.ok()) {
    if (world->world() > 1) world->Abort(status.message());
    return status;
  }
  parameters_->AdoptExperts(std::move(residents_), std::move(experts_));
  return groups;
}

}  // namespace switchyard
