// One worker, as the engine sees it: what it can be told, and what it tells.  Plain values; worker_link.h is the gRPC
// form, tests use a fake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/batching/step.h"
#include "scheduler/placement/background/group_placement.h"

namespace switchyard {

using WorkerId = int64_t;  // drawn by the server for each link, never reused

struct WorkerInfo {
  std::string incarnation;
  std::string host;
  int64_t pid = 0;
  std::string device;
  std::string isa;
  int64_t memory_bytes = 0;
  bool also_trains = false;  // beside serving, where this server has jobs for it
  std::string weights_hash;
  std::string join_token;
  int local_index = -1;  // >= 0: the server's own n-th worker
  std::string peer;      // the other end of its link, as gRPC names it
  std::string collective_address;
  std::string metrics_address;  // HOST:PORT; empty: none
  // Of its model:
  std::string architecture;
  std::string dtype;
  int32_t vocab_size = 0;
  int32_t context = 0;
  int32_t num_layers = 0;
  int32_t num_moe_layers = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t hidden = 0;
  std::vector<int32_t> eos_token_ids;
  int32_t long_rope_above = 0;
  int32_t min_loan_rows = 0;
  int64_t expert_bytes = 0;
  std::optional<MemoryShare> expert_budget;  // none: it holds all of its experts where it computes
};

// A worker's seat in a group that is about to form.
struct GroupSeat {
  int64_t epoch = 0;
  int rank = 0;
  int world = 1;
  int num_layers = 0;
  std::string store_token;
  int64_t form_deadline_ms = 0;
  std::string reach;  // a member's address that is not loopback; empty if there is none
  GroupPlacement placement;
};

// Commands to a worker.  Thread-safe, never blocks: messages queue for the link (bounded by the plans in flight); those
// of a broken link are dropped, OnLost tells.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;
  virtual void Join(const GroupSeat& seat) = 0;
  // `limit`: longest that the rank waits for the others.
  virtual void Execute(const StepPlan& plan, int rank, absl::Duration limit) = 0;
  virtual void AbortGroup(int64_t epoch, const std::string& reason) = 0;
  // A placement that comes: copy what arrives (OnPlacementPrepared answers); forget it; give back what departed
  // (OnPlacementReleased answers).
  virtual void PreparePlacement(const PlacementStage& stage, int64_t group_epoch) = 0;
  virtual void DropPlacement(int64_t group_epoch, int64_t placement_epoch) = 0;
  virtual void ReleasePlacement(int64_t group_epoch, int64_t placement_epoch) = 0;
  // A part of what it has learned (OnProfilePart answers).
  virtual void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) = 0;
  // Ends the link: the worker sees `status`.  OnLost follows.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace switchyard
