// One mode of expert placement on one rank: what it sends to the others, what it decides, and what its layers take.
//
// Decisions are the policy's own (scheduler/placement/per_step/layer_decision.h), made on every rank from the plan's
// numbers; messages of the sizes that the mode has are sent where it sends them:
//   agreed           counts and hash in an all-gather after the gate
//   static+spare     likewise
//   lina             counts to device 0 and its answer to all after the gate; estimates ride on the dispatch, the
//                    mapping on the combine (no messages of their own); no_estimate, no_finetune lack a half
//   static, ideal    none
// Policy CPU time is charged: `estimate_seconds` times the scale pass on every rank of a mode that estimates, before it
// reports anything, and `decide_seconds` times the scale where it decides before it dispatches.  A device copies
// experts one after the other, each for `copy`; rows wait for the copies that their replica needs. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/placement/per_step/layer_decision.h"
#include "tests/bench/placement/batch_plan.h"
#include "tests/bench/placement/emulated_layer.h"
#include "tests/bench/placement/link_mesh.h"

namespace switchyard::bench {

struct RunOptions {
  placement::PlacementMode mode = placement::PlacementMode::kStatic;
  int spare_slots = 1;  // a device and layer
  LayerTimes layer;
  absl::Duration copy;          // of one expert into a slot
  absl::Duration dense;         // between a layer's experts and the next gate
  double policy_scale = 1;      // what a second of the policy's CPU time is charged as
  placement::LayerCosts costs;  // what the policy believes
};

// The figures of the layer that was run.
struct RunResult {
  // This machine's clock: when this rank's gate was due (on a core of its own it would be at it then), and with the
  // combined rows.
  int64_t gate_us = 0, end_us = 0;
  int64_t link_rows = 0;  // that this rank's link carries one way, the fuller one
  int64_t own_rows = 0;   // that it computes
  PhaseTimes phases;
  double batch_seconds = 0;  // what passes before the layer, and the layer
  int64_t copies = 0;        // of this device, for the layer
  int64_t fine_tuned = 0;    // 1 = weights moved after the gate
};

class PlacementRun {
 public:
  static absl::StatusOr<std::unique_ptr<PlacementRun>> Create(const RunOptions& options, const BatchPlan* plan,
                                                              LinkMesh* mesh);

  // Decides every layer, and runs one: the next one with every batch, from the second on.  The layer before it starts
  // the copies that its estimate asked for; those of other layers take no time.
  // All ranks, the same batches in the same order.  REQUIRES: the plan has two layers or more.
  absl::StatusOr<RunResult> RunBatch(int batch);
  // Decides every layer and runs none, so that slots are always those of the batch before.
  void SkipBatch(int batch);
  // The CPU time of one decision, measured by calling it alone; the policy is as new afterwards.
  absl::StatusOr<double> MeasureDecision();
  void set_decide_seconds(double seconds) { decide_seconds_ = seconds; }
  // That one rank's estimate of a layer takes.
  void set_estimate_seconds(double seconds) { estimate_seconds_ = seconds; }

 private:
  PlacementRun(const RunOptions& options, const BatchPlan* plan, LinkMesh* mesh);
  absl::Status MakePolicy();
  placement::LayerDecision Decide(int batch, int layer);
  absl::Status RunLayer(int batch, int layer, RunResult* result);
  absl::Status ReportAndDecide(int batch, int layer, placement::LayerDecision* decision);
  void Charge(double policy_seconds) const;
  absl::Status AskDeviceZero();
  LayerRows RowsOf(const placement::LayerDecision& decision) const;
  void NoteRows(const LayerRows& rows, RunResult* result) const;
  LayerRows BalancedRows(const PlannedLayer& layer) const;
  void StartPrefetch(const placement::LayerDecision& decision);
  void StartCopies(const placement::SlotPlan& slots, int64_t number);
  // Sets what waits for copies.
  void AwaitCopies(const placement::LayerDecision& decision, LayerRows* rows) const;

  const RunOptions options_;
  const BatchPlan* const plan_;
  LinkMesh* const mesh_;
  const int64_t gather_bytes_;  // that one rank sends
  EmulatedLayer layer_;
  std::unique_ptr<placement::PlacementPolicy> policy_;
  double decide_seconds_ = 0, estimate_seconds_ = 0;
  int64_t step_ = 0;
  int64_t copies_ = 0;
  absl::Time engine_free_ = absl::InfinitePast();
  std::map<std::tuple<int, int32_t, int64_t>, absl::Time> copy_ends_;  // (layer, slot, decision) of this device
};

}  // namespace switchyard::bench
