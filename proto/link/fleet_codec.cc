#include "proto/link/fleet_codec.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/link/field_table.h"
#include "proto/link/link_protocol.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

constexpr auto WorkerFields() {
  using M = v1::Register;
  using S = fleet::WorkerInfo;
  return FieldTable(Field(&M::incarnation, &M::mutable_incarnation, &S::incarnation),
                    Field(&M::host, &M::mutable_host, &S::host), Field(&M::pid, &M::set_pid, &S::pid),
                    Field(&M::role, &M::mutable_role, &S::role), Field(&M::device, &M::mutable_device, &S::device),
                    Field(&M::isa, &M::mutable_isa, &S::isa),
                    Field(&M::weights_hash, &M::mutable_weights_hash, &S::weights_hash),
                    Field(&M::join_token, &M::mutable_join_token, &S::join_token),
                    Field(&M::local_index, &M::set_local_index, &S::local_index),
                    Field(&M::collective_address, &M::mutable_collective_address, &S::collective_address),
                    Field(&M::metrics_address, &M::mutable_metrics_address, &S::metrics_address));
}

constexpr auto ModelFields() {
  using M = v1::ModelFacts;
  using S = fleet::WorkerInfo;
  return FieldTable(
      Field(&M::architecture, &M::mutable_architecture, &S::architecture),
      Field(&M::dtype, &M::mutable_dtype, &S::dtype),
      Field(&M::quantization, &M::mutable_quantization, &S::quantization),
      Field(&M::kv_cache_dtype, &M::mutable_kv_cache_dtype, &S::kv_cache_dtype),
      Field(&M::vocab_size, &M::set_vocab_size, &S::vocab_size), Field(&M::context, &M::set_context, &S::context),
      Field(&M::num_layers, &M::set_num_layers, &S::num_layers),
      Field(&M::num_moe_layers, &M::set_num_moe_layers, &S::num_moe_layers),
      Field(&M::num_experts, &M::set_num_experts, &S::num_experts),
      Field(&M::experts_per_token, &M::set_experts_per_token, &S::experts_per_token),
      Field(&M::eos_token_ids, &M::mutable_eos_token_ids, &S::eos_token_ids),
      Field(&M::long_rope_above, &M::set_long_rope_above, &S::long_rope_above),
      Field(&M::min_rebalance_rows, &M::set_min_rebalance_rows, &S::min_rebalance_rows),
      Field(&M::expert_bytes, &M::set_expert_bytes, &S::expert_bytes),
      Field(&M::row_bytes, &M::set_row_bytes, &S::row_bytes), Field(&M::adapters, &M::mutable_adapters, &S::adapters));
}

constexpr auto SettingsFields() {
  using M = v1::EngineOptions;
  using S = fleet::EngineSettings;
  return FieldTable(Field(&M::block_size, &M::set_block_size, &S::block_size),
                    Field(&M::kv_cache_bytes, &M::set_kv_cache_bytes, &S::kv_cache_bytes),
                    Field(&M::max_num_seqs, &M::set_max_num_seqs, &S::max_num_seqs),
                    Field(&M::max_batched_tokens, &M::set_max_batched_tokens, &S::max_batched_tokens),
                    Field(&M::max_model_len, &M::set_max_model_len, &S::max_model_len),
                    Field(&M::train_yield_ms, &M::set_train_yield_ms, &S::train_yield_ms),
                    Field(&M::add_outputs, &M::set_add_outputs, &S::add_outputs));
}

constexpr auto PlacementFields() {
  using M = v1::PlacementOptions;
  using S = placement::PlacementSettings;
  return FieldTable(Field(&M::spare_slots, &M::set_spare_slots, &S::spare_slots));
}

constexpr auto RankFields() {
  using M = v1::JoinGroup;
  using S = fleet::RankAssignment;
  return FieldTable(
      Field(&M::epoch, &M::set_epoch, &S::epoch), Field(&M::rank, &M::set_rank, &S::rank),
      Field(&M::world, &M::set_world, &S::world), Field(&M::store_token, &M::mutable_store_token, &S::store_token),
      Field(&M::deadline_ms, &M::set_deadline_ms, &S::form_deadline_ms), Field(&M::reach, &M::mutable_reach, &S::reach),
      Field(&M::encrypt_links, &M::set_encrypt_links, &S::encrypt_links));
}

constexpr auto LoadProgressFields() {
  using M = v1::LoadProgress;
  using S = fleet::LoadProgress;
  return FieldTable(Field(&M::epoch, &M::set_epoch, &S::epoch), Field(&M::done, &M::set_done, &S::done),
                    Field(&M::total, &M::set_total, &S::total));
}

constexpr auto ReadyFields() {
  using M = v1::GroupReady;
  using S = fleet::GroupReady;
  return FieldTable(Field(&M::epoch, &M::set_epoch, &S::epoch),
                    Field(&M::num_kv_blocks, &M::set_num_kv_blocks, &S::num_kv_blocks),
                    Field(&M::experts_in_place, &M::set_experts_in_place, &S::experts_in_place));
}

constexpr auto LinkFields() {
  using M = v1::LinkFit;
  using S = fleet::LinkFit;
  return FieldTable(Field(&M::start_seconds, &M::set_start_seconds, &S::start_seconds),
                    Field(&M::bytes_per_second, &M::set_bytes_per_second, &S::bytes_per_second),
                    Field(&M::r_squared, &M::set_r_squared, &S::r_squared));
}

// Seconds, and bytes a second.
constexpr double kLongestStart = 60, kSlowestLink = 1, kFastestLink = 1e15;

constexpr absl::string_view kPhaseNames[] = {"weights", "experts", "graphs"};  // by LoadPhase

}  // namespace

v1::Register ToProto(const fleet::WorkerInfo& info) {
  v1::Register message = WorkerFields().ToProto(info);
  message.set_protocol_version(kProtocolVersion);
  if (!info.architecture.empty()) *message.mutable_model() = ModelFields().ToProto(info);
  if (info.expert_budget.has_value()) {
    message.set_expert_budget_percent(info.expert_budget->percent);
    message.set_expert_budget_bytes(info.expert_budget->bytes);
  }
  return message;
}

fleet::WorkerInfo FromProto(const v1::Register& message) {
  fleet::WorkerInfo info = WorkerFields().FromProto(message);
  ModelFields().Take(message.model(), &info);
  if (message.expert_budget_percent() > 0 || message.expert_budget_bytes() > 0) {
    info.expert_budget = MemoryShare{.percent = std::min(100.0, message.expert_budget_percent()),
                                     .bytes = message.expert_budget_bytes()};
  }
  return info;
}

v1::EngineOptions ToProto(const fleet::EngineSettings& settings) {
  v1::EngineOptions message = SettingsFields().ToProto(settings);
  PlacementFields().Put(settings.placement, message.mutable_placement());
  message.mutable_placement()->set_mode(std::string(placement::NameOf(settings.placement.mode)));
  return message;
}

absl::StatusOr<fleet::EngineSettings> FromProto(const v1::EngineOptions& message) {
  fleet::EngineSettings settings = SettingsFields().FromProto(message);
  PlacementFields().Take(message.placement(), &settings.placement);
  if (const std::string& mode = message.placement().mode(); !mode.empty()) {
    ASSIGN_OR_RETURN(settings.placement.mode, placement::ParsePlacementMode(mode));
  }
  RETURN_IF_ERROR(placement::CheckPlacementSettings(settings.placement));
  return settings;
}

v1::JoinGroup ToProto(const fleet::RankAssignment& assignment) { return RankFields().ToProto(assignment); }

absl::StatusOr<fleet::RankAssignment> FromProto(const v1::JoinGroup& message) {
  fleet::RankAssignment assignment = RankFields().FromProto(message);
  RETURN_IF_ERROR(CheckRank(assignment.rank, assignment.world));
  return assignment;
}

v1::LoadProgress ToProto(const fleet::LoadProgress& progress) {
  v1::LoadProgress message = LoadProgressFields().ToProto(progress);
  message.set_phase(std::string(kPhaseNames[static_cast<size_t>(progress.phase)]));
  return message;
}

fleet::LoadProgress FromProto(const v1::LoadProgress& message) {
  fleet::LoadProgress progress = LoadProgressFields().FromProto(message);
  progress.total = std::max<int64_t>(progress.total, 0);
  progress.done = std::clamp<int64_t>(progress.done, 0, progress.total);
  const auto* const phase = std::find(std::begin(kPhaseNames), std::end(kPhaseNames), message.phase());
  if (phase != std::end(kPhaseNames)) progress.phase = static_cast<fleet::LoadPhase>(phase - kPhaseNames);
  return progress;
}

v1::GroupReady ToProto(const fleet::GroupReady& ready) {
  v1::GroupReady message = ReadyFields().ToProto(ready);
  if (ready.links.measured()) *message.mutable_links() = LinkFields().ToProto(ready.links);
  return message;
}

fleet::GroupReady FromProto(const v1::GroupReady& message) {
  fleet::GroupReady ready = ReadyFields().FromProto(message);
  const fleet::LinkFit links = LinkFields().FromProto(message.links());
  // (No comparison holds of what is not a number.)
  const bool possible = links.start_seconds >= 0 && links.start_seconds <= kLongestStart &&
                        links.bytes_per_second >= kSlowestLink && links.bytes_per_second <= kFastestLink &&
                        links.r_squared <= 1;
  if (possible) ready.links = links;
  return ready;
}

absl::Status CheckRank(int rank, int world) {
  if (0 <= rank && rank < world) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no assignment: rank ", rank, " of ", world));
}

}  // namespace switchyard::link
