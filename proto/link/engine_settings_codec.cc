#include "proto/link/engine_settings_codec.h"

#include <string>

#include "scheduler/base/status_macros.h"

namespace switchyard::link {
namespace {

v1::PlacementOptions ToProto(const placement::PlacementSettings& settings) {
  v1::PlacementOptions message;
  message.set_mode(std::string(placement::NameOf(settings.mode)));
  message.set_spare_slots(settings.spare_slots);
  message.set_replica_slots(settings.replica_slots);
  message.set_rebalance_steps(settings.rebalance_steps);
  return message;
}

absl::StatusOr<placement::PlacementSettings> FromProto(const v1::PlacementOptions& message) {
  placement::PlacementSettings settings;
  if (!message.mode().empty()) {
    ASSIGN_OR_RETURN(settings.mode, placement::ParsePlacementMode(message.mode()));
  }
  settings.spare_slots = message.spare_slots();
  settings.replica_slots = message.replica_slots();
  settings.rebalance_steps = message.rebalance_steps();
  RETURN_IF_ERROR(placement::CheckPlacementSettings(settings));
  return settings;
}

}  // namespace

v1::EngineOptions ToProto(const fleet::EngineSettings& settings) {
  v1::EngineOptions message;
  message.set_block_size(settings.block_size);
  message.set_kv_cache_bytes(settings.kv_cache_bytes);
  message.set_max_num_seqs(settings.max_num_seqs);
  message.set_max_batched_tokens(settings.max_batched_tokens);
  message.set_max_model_len(settings.max_model_len);
  message.set_train_yield_ms(settings.train_yield_ms);
  *message.mutable_placement() = ToProto(settings.placement);
  return message;
}

absl::StatusOr<fleet::EngineSettings> FromProto(const v1::EngineOptions& message) {
  fleet::EngineSettings settings;
  settings.block_size = message.block_size();
  settings.kv_cache_bytes = message.kv_cache_bytes();
  settings.max_num_seqs = message.max_num_seqs();
  settings.max_batched_tokens = message.max_batched_tokens();
  settings.max_model_len = message.max_model_len();
  settings.train_yield_ms = message.train_yield_ms();
  ASSIGN_OR_RETURN(settings.placement, FromProto(message.placement()));
  return settings;
}

}  // namespace switchyard::link
