#include "scheduler/pipeline/build_expert_parallel.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
namespace {

// Builds the list of one pass; remembers where each chunk's ops are.
class Builder {
 public:
  Builder(const ExpertParallelOptions& options, Pass pass) : options_(options), pass_(pass) {}

  std::vector<MicroOp> Build() {
    const int n = options_.micro_batches;
    gate_ = forward() ? Add({.kind = MicroOpKind::kGate, .pass = pass_}, {}) : kNone;
    RestoreHidden(0);
    for (int chunk = 0; chunk < (options_.dispatch_first ? n : 1); ++chunk) Dispatch(chunk);
    // Needs no other rank, so it runs while the first rows travel.
    if (options_.shared_expert) {
      MicroOp op = {.kind = MicroOpKind::kExpert, .pass = pass_, .experts = ExpertSet::kShared};
      op.writes = {BufferSlot{forward() ? BufferKind::kHidden : BufferKind::kHiddenGradient, 0}};
      shared_ = Add(std::move(op), {});
    }
    for (int chunk = 0; chunk < n; ++chunk) {
      if (chunk + 1 < n && !options_.dispatch_first) Dispatch(chunk + 1);
      SaveInput(chunk);
      Experts(chunk);
      SaveHidden(chunk);
      if (chunk + 1 < n) RestoreHidden(chunk + 1);
      if (options_.joint_gradients) Weights(chunk);
      Combine(chunk);
      if (!options_.joint_gradients) Weights(chunk);
    }
    if (!forward()) {
      const int router = Add({.kind = MicroOpKind::kGate, .pass = pass_}, {});
      ops_[static_cast<size_t>(router)].deps = combined_;
    }
    return std::move(ops_);
  }

 private:
  static constexpr int kNone = -1;
  bool forward() const { return pass_ == Pass::kForward; }
  bool keeps_input() const { return options_.trains && options_.restore.input == InputRestore::kKeep; }
  bool keeps_hidden() const { return options_.trains && options_.restore.hidden == HiddenRestore::kKeep; }

  // The slot of dispatched rows that are not kept, and of what combines return.
  int Turn(int chunk) const { return options_.dispatch_first || !options_.reuses ? chunk : chunk % 2; }
  BufferSlot Input(int chunk) const { return {BufferKind::kInput, keeps_input() ? chunk : Turn(chunk)}; }
  BufferSlot OutputGradient(int chunk) const { return {BufferKind::kOutputGradient, Turn(chunk)}; }
  BufferSlot Hidden(int chunk) const { return {BufferKind::kHidden, keeps_hidden() || !options_.reuses ? chunk : 0}; }
  BufferSlot HiddenGradient(int chunk) const { return {BufferKind::kHiddenGradient, options_.reuses ? 0 : chunk}; }

  int Add(MicroOp op, std::initializer_list<int> deps) {
    for (const int dep : deps) {
      if (dep != kNone && std::count(op.deps.begin(), op.deps.end(), dep) == 0) op.deps.push_back(dep);
    }
    ops_.push_back(std::move(op));
    return static_cast<int>(ops_.size()) - 1;
  }

  // Adds a dispatch.
  int Send(MicroOp op, std::initializer_list<int> deps) {
    if (options_.in_turn && sent_ != kNone) op.deps.push_back(sent_);
    return sent_ = Add(std::move(op), deps);
  }

  // Of this list's pass, or of values.
  MicroOp Of(MicroOpKind kind, int chunk, Pass pass) const {
    return {.kind = kind, .pass = pass, .chunk = chunk, .num_chunks = options_.micro_batches};
  }
  MicroOp Of(MicroOpKind kind, int chunk) const { return Of(kind, chunk, pass_); }

  // The op of this chunk, or of the one so many before it; none: the list has none, yet.
  static int At(const std::vector<int>& ops, int chunk, int before = 0) {
    const auto at = static_cast<size_t>(chunk - before);
    return chunk < before || at >= ops.size() ? kNone : ops[at];
  }

  void Dispatch(int chunk) {
    MicroOp op = Of(MicroOpKind::kDispatch, chunk);
    if (!forward()) {
      op.writes = {OutputGradient(chunk)};
      dispatched_.push_back(Send(std::move(op), {At(weights_, chunk, 2)}));
      RestoreInput(chunk);
      return;
    }
    op.writes = {Input(chunk)};
    const int reader = keeps_input() ? kNone : At(computed_, chunk, 2);
    dispatched_.push_back(Send(std::move(op), {gate_, reader, At(saved_input_, chunk, 2)}));
  }

  void RestoreInput(int chunk) {
    if (keeps_input()) return;
    const bool again = options_.restore.input == InputRestore::kResend;
    MicroOp op = Of(again ? MicroOpKind::kDispatch : MicroOpKind::kRestore, chunk, Pass::kForward);
    op.writes = {Input(chunk)};
    const int reader = At(weights_, chunk, 2);
    restored_input_.push_back(again ? Send(std::move(op), {reader}) : Add(std::move(op), {reader}));
  }

  void SaveInput(int chunk) {
    if (!forward() || !options_.trains || options_.restore.input != InputRestore::kOffload) return;
    MicroOp op = Of(MicroOpKind::kSave, chunk);
    op.reads = {Input(chunk)};
    saved_input_.push_back(Add(std::move(op), {At(dispatched_, chunk)}));
  }

  void SaveHidden(int chunk) {
    if (!forward() || !options_.trains || options_.restore.hidden != HiddenRestore::kOffload) return;
    MicroOp op = Of(MicroOpKind::kSave, chunk);
    op.reads = {Hidden(chunk)};
    saved_hidden_.push_back(Add(std::move(op), {At(computed_, chunk)}));
  }

  // There is one slot: it is free once the chunk before has been differentiated.
  void RestoreHidden(int chunk) {
    if (forward() || options_.restore.hidden != HiddenRestore::kOffload) return;
    MicroOp op = Of(MicroOpKind::kRestore, chunk, Pass::kForward);
    op.writes = {Hidden(chunk)};
    restored_hidden_.push_back(Add(std::move(op), {At(computed_, chunk, 1)}));
  }

  void Recompute(int chunk) {
    MicroOp op = Of(MicroOpKind::kRecompute, chunk, Pass::kForward);
    op.reads = {Input(chunk)};
    op.writes = {Hidden(chunk)};
    restored_hidden_.push_back(Add(std::move(op), {At(computed_, chunk, 1), At(restored_input_, chunk)}));
  }

  void Experts(int chunk) {
    const int rows = At(dispatched_, chunk);
    const int slot_free = options_.dispatch_first ? kNone : At(combined_, chunk, 2);
    MicroOp op = Of(MicroOpKind::kExpert, chunk);
    if (forward()) {
      op.reads = {Input(chunk)};
      op.writes = {Hidden(chunk), {BufferKind::kOutput, Turn(chunk)}};
      const int hidden_before = keeps_hidden() ? kNone : At(computed_, chunk, 1);
      const int shared = chunk == 0 ? shared_ : kNone;
      computed_.push_back(Add(std::move(op), {slot_free, shared, hidden_before, At(saved_hidden_, chunk, 1), rows}));
      return;
    }
    if (options_.restore.hidden == HiddenRestore::kRecompute) Recompute(chunk);
    op.reads = {Hidden(chunk), OutputGradient(chunk)};
    op.writes = {HiddenGradient(chunk), {BufferKind::kInputGradient, Turn(chunk)}};
    const int gradient_before = chunk == 0 ? shared_ : weights_.back();
    computed_.push_back(Add(std::move(op), {slot_free, gradient_before, rows, At(restored_hidden_, chunk)}));
  }

  void Combine(int chunk) {
    MicroOp op = Of(MicroOpKind::kCombine, chunk);
    op.reads = {BufferSlot{forward() ? BufferKind::kOutput : BufferKind::kInputGradient, Turn(chunk)}};
    combined_.push_back(Add(std::move(op), {computed_.back(), shared_}));
  }

  void Weights(int chunk) {
    if (forward()) return;
    MicroOp op = Of(MicroOpKind::kWeights, chunk);
    op.reads = {Input(chunk), OutputGradient(chunk), HiddenGradient(chunk)};
    weights_.push_back(Add(std::move(op), {computed_.back(), At(restored_input_, chunk)}));
  }

  const ExpertParallelOptions& options_;
  const Pass pass_;
  std::vector<MicroOp> ops_;
  std::vector<int> dispatched_, computed_, combined_, weights_;                     // [chunks]
  std::vector<int> saved_input_, saved_hidden_, restored_input_, restored_hidden_;  // [chunks], or none
  int gate_ = kNone, shared_ = kNone;
  int sent_ = kNone;  // the last dispatch
};

}  // namespace

MoeSchedule BuildExpertParallel(const ExpertParallelOptions& options) {
  SY_CHECK_GE(options.micro_batches, 1);
  SY_CHECK_LE(options.micro_batches, kMaxMicroBatches);
  SY_CHECK((!options.dispatch_first && options.reuses) || !options.trains || options.restore.keeps_all());
  MoeSchedule schedule = {
      .name = options.cut == Cut::kPeers && options.dispatch_first ? "faster_moe" : "expert_parallel",
      .num_chunks = options.micro_batches,
      .cut = options.cut};
  schedule.forward = Builder(options, Pass::kForward).Build();
  if (options.trains) schedule.backward = Builder(options, Pass::kBackward).Build();
  SY_CHECK_OK(Validate(schedule));
  return schedule;
}

}  // namespace switchyard::pipeline
