#include "workers/train/packing/repack.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/call_tag.h"
#include "workers/comm/core/part_collectives.h"
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
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(world, room, deadline - MonotonicNow()));
  repack->refusal_ = FirstError(words);
  if (!repack->refusal_.ok()) repack->experts_ = {};
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

int64_t Repack::LargestMessage() const {
  const int me = groups_.group().experts->rank();
  absl::flat_hash_map<int32_t, std::vector<int>> to;
  for (const Move& move : moves_) {
    if (move.from == me) to[move.expert].push_back(move.to);
  }
  std::map<std::pair<int32_t, int>, int64_t> bytes;  // by layer and rank
  int64_t largest = 0;
  for (const ParameterBlock& block : parameters_->blocks()) {
    if (block.shard != model::Shard::kExpert) continue;
    const auto states = static_cast<int64_t>(StateOf(block).size());
    for (const int rank : to[block.expert]) {
      int64_t& sum = bytes[{block.layer, rank}];
      sum += states * block.size() * DTypeBytes(AccDType(parameters_->model().dtype()));
      largest = std::max(largest, sum);
    }
  }
  return largest;
}

absl::Status Repack::Allocate(const RepackOptions& options) {
  const int me = groups_.group().experts->rank();
  if (const int64_t bytes = LargestMessage(); bytes > options.message_bytes) {
    return absl::UnavailableError(absl::StrCat("a layer's experts for another rank are a message of ", bytes,
                                               " bytes, at most ", options.message_bytes, " can be sent"));
  }
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
    return absl::UnavailableError(absl::StrCat(added, " more experts a layer take ", bytes, " bytes",
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
  comm::PartViews send(group->world()), recv(group->world());
  for (const Move& move : moves_) {
    if (move.from == me) Append(PartsOf(from, move.expert), &send[move.to]);
    if (move.to == me) Append(PartsOf(to, move.expert), &recv[move.from]);
  }
  std::vector<comm::Message> out(group->world());
  for (int r = 0; r < group->world(); ++r) {
    if (r != me) out[r] = comm::PackPieces(group, send[r]);
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      group->AllToAllV({.deadline = deadline, .tag = comm::CallTag(comm::CallUse::kRepack, layer)}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  for (int r = 0; r < group->world(); ++r) {
    if (r == me) continue;
    RETURN_IF_ERROR(comm::UnpackPieces(group, "a change of packing", r, work->received()[r], recv[r]));
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
  SY_CHECK_OK(refusal_);
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
