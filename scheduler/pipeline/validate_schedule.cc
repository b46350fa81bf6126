// Validate of moe_schedule.h.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "scheduler/pipeline/schedule_timeline.h"

namespace switchyard::pipeline {
namespace {

using Kinds = std::array<bool, kNumBufferKinds>;

Kinds KindsOf(const std::vector<BufferSlot>& slots) {
  Kinds kinds = {};
  for (const BufferSlot& slot : slots) kinds[static_cast<size_t>(slot.kind)] = true;
  return kinds;
}

bool IsRouted(const MicroOp& op) { return op.kind == MicroOpKind::kExpert && op.experts == ExpertSet::kRouted; }
bool IsShared(const MicroOp& op) { return op.kind == MicroOpKind::kExpert && op.experts == ExpertSet::kShared; }

struct Accesses {
  std::vector<BufferSlot> reads, writes;  // of each kind one
};

// What an op of this kind reads and writes, in whichever slots.
Accesses AccessesOf(const MicroOp& op) {
  const bool values = op.pass == Pass::kForward;
  using enum BufferKind;
  if (op.kind == MicroOpKind::kGate) return {};
  if (IsShared(op)) return {.reads = {}, .writes = {BufferSlot{values ? kHidden : kHiddenGradient}}};
  switch (op.kind) {
    case MicroOpKind::kDispatch:
      return {.reads = {}, .writes = {BufferSlot{values ? kInput : kOutputGradient}}};
    case MicroOpKind::kCombine:
      return {.reads = {BufferSlot{values ? kOutput : kInputGradient}}, .writes = {}};
    case MicroOpKind::kRecompute:
      return {.reads = {BufferSlot{kInput}}, .writes = {BufferSlot{kHidden}}};
    case MicroOpKind::kSave:
    case MicroOpKind::kRestore: {
      const BufferSlot copied = {op.SlotOf(kHidden) >= 0 ? kHidden : kInput};
      if (op.kind == MicroOpKind::kSave) return {.reads = {copied}, .writes = {}};
      return {.reads = {}, .writes = {copied}};
    }
    case MicroOpKind::kWeights:
      return {.reads = {BufferSlot{kInput}, {kOutputGradient}, {kHiddenGradient}}, .writes = {}};
    case MicroOpKind::kAllGather:
    case MicroOpKind::kAllReduce:
      // Of what combine will read, in its place; or of this rank's own rows, which are in no buffer.
      if (op.reads.empty()) return {};
      return {.reads = {BufferSlot{values ? kOutput : kInputGradient}}, .writes = {}};
    default:
      if (values) return {.reads = {BufferSlot{kInput}}, .writes = {BufferSlot{kHidden}, {kOutput}}};
      return {.reads = {BufferSlot{kHidden}, {kOutputGradient}},
              .writes = {BufferSlot{kHiddenGradient}, {kInputGradient}}};
  }
}

// Where a slot's rows come from and who has read them.
struct SlotState {
  int chunk = 0, num_chunks = 1;
  bool shared = false;   // of the shared expert
  bool forward = false;  // written by the list before this one
  int writer = 0;
  std::vector<int> readers;  // of this list
};

// All slots of a program, as its ops pass.
class Slots {
 public:
  std::optional<SlotState>& Of(const BufferSlot& slot) {
    auto& of_kind = slots_[static_cast<size_t>(slot.kind)];
    if (of_kind.size() <= static_cast<size_t>(slot.slot)) of_kind.resize(static_cast<size_t>(slot.slot) + 1);
    return of_kind[static_cast<size_t>(slot.slot)];
  }

  void Save(BufferKind kind, int chunk) { saved_.insert({kind, chunk}); }
  bool IsSaved(BufferKind kind, int chunk) const { return saved_.contains({kind, chunk}); }

  // Forward is done.
  void NextList() {
    for (auto& of_kind : slots_) {
      for (std::optional<SlotState>& slot : of_kind) {
        if (!slot.has_value()) continue;
        slot->forward = true;
        slot->readers.clear();
      }
    }
  }

 private:
  std::array<std::vector<std::optional<SlotState>>, kNumBufferKinds> slots_;
  std::set<std::pair<BufferKind, int>> saved_;  // of which chunk
};

// Checks one of a program's two lists.
class ListCheck {
 public:
  ListCheck(const MoeSchedule& schedule, bool backward)
      : schedule_(schedule), backward_(backward), ops_(backward ? schedule.backward : schedule.forward) {}

  absl::Status Check(Slots* slots) {
    for (int i = 0; i < size(); ++i) {
      RETURN_IF_ERROR(CheckOp(i));
      AddReach(i);
      RETURN_IF_ERROR(CheckBuffers(i, slots));
      RETURN_IF_ERROR(CheckOrder(i));
    }
    return CheckCounts();
  }

 private:
  int size() const { return static_cast<int>(ops_.size()); }
  const MicroOp& op(int i) const { return ops_[static_cast<size_t>(i)]; }

  absl::Status Wrong(int i, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule_.name, ", ",
                                                   backward_ ? "backward" : "forward", " op ", i, " (", OpName(op(i)),
                                                   "): ", what));
  }

  // Checks one op by itself.
  absl::Status CheckOp(int i) const {
    const MicroOp& op = this->op(i);
    if (op.num_chunks < 1 || op.chunk < 0 || op.chunk >= op.num_chunks)
      return Wrong(i, absl::StrCat("chunk ", op.chunk, " of ", op.num_chunks));
    if (op.num_chunks != 1 && op.num_chunks != schedule_.num_chunks)
      return Wrong(i, absl::StrCat("cuts rows into ", op.num_chunks, ", the schedule into ", schedule_.num_chunks));
    if (op.num_chunks != schedule_.num_chunks && op.kind != MicroOpKind::kGate && !IsShared(op))
      return Wrong(i, "is of all rows, where rows are cut");
    if (!backward_ && (op.pass != Pass::kForward || op.kind == MicroOpKind::kWeights))
      return Wrong(i, "computes gradients in the forward program");
    if (op.kind == MicroOpKind::kWeights && op.pass == Pass::kForward) return Wrong(i, "is of gradients alone");
    if (op.kind >= MicroOpKind::kRecompute && op.pass == Pass::kBackward)
      return Wrong(i, "gradients are neither kept nor computed again");
    if (backward_ && op.pass == Pass::kForward && op.kind != MicroOpKind::kDispatch &&
        op.kind < MicroOpKind::kRecompute)
      return Wrong(i, "computes values in the backward program");
    if (backward_ && op.kind == MicroOpKind::kGate && op.num_chunks != 1)
      return Wrong(i, "the router's gradients are of all rows");
    if (op.kind == MicroOpKind::kSave && backward_) return Wrong(i, "saves in the backward program");
    if (op.kind == MicroOpKind::kRestore && !backward_) return Wrong(i, "restores in the forward program");
    for (const int dep : op.deps) {
      if (dep < 0 || dep >= i) return Wrong(i, absl::StrCat("depends on op ", dep, ", which is not earlier"));
    }
    RETURN_IF_ERROR(CheckCommunication(i));
    const Accesses wanted = AccessesOf(op);
    for (const bool writes : {false, true}) {
      const std::vector<BufferSlot>& has = writes ? op.writes : op.reads;
      const std::vector<BufferSlot>& wants = writes ? wanted.writes : wanted.reads;
      if (has.size() != wants.size() || KindsOf(has) != KindsOf(wants))
        return Wrong(i, absl::StrCat(writes ? "writes" : "reads", " other buffers than its kind does"));
      for (const BufferSlot& slot : has) {
        if (slot.slot < 0) return Wrong(i, absl::StrCat("slot ", slot.slot, " of ", BufferKindName(slot.kind)));
      }
    }
    return absl::OkStatus();
  }

  // Checks groups and parts.
  absl::Status CheckCommunication(int i) const {
    const MicroOp& op = this->op(i);
    const bool of_copies = op.group == Group::kShards || op.group == Group::kCopies;
    if (IsCommunicating(op.kind) && IsGather(op.kind) != of_copies)
      return Wrong(i, absl::StrCat("is among ", GroupName(op.group)));
    if (op.num_parts < 1 || op.part < 0 || op.part >= op.num_parts)
      return Wrong(i, absl::StrCat("part ", op.part, " of ", op.num_parts));
    if (op.num_parts == 1 || op.kind == MicroOpKind::kCombine) return absl::OkStatus();
    if (op.kind == MicroOpKind::kAllGather && op.reads.empty()) return absl::OkStatus();
    return Wrong(i, "is cut into parts");
  }

  void AddReach(int i) {
    std::vector<char> reach(static_cast<size_t>(i), 0);
    for (const int dep : op(i).deps) {
      reach[static_cast<size_t>(dep)] = 1;
      const std::vector<char>& through = reach_[static_cast<size_t>(dep)];
      for (size_t j = 0; j < through.size(); ++j) {
        if (through[j] != 0) reach[j] = 1;
      }
    }
    reach_.push_back(std::move(reach));
  }

  bool Depends(int i, int on) const { return reach_[static_cast<size_t>(i)][static_cast<size_t>(on)] != 0; }

  absl::Status CheckBuffers(int i, Slots* slots) {
    const auto name = [](const BufferSlot& slot) { return absl::StrCat(BufferKindName(slot.kind), " ", slot.slot); };
    for (const BufferSlot& slot : op(i).reads) {
      std::optional<SlotState>& state = slots->Of(slot);
      if (!state.has_value()) return Wrong(i, absl::StrCat("reads ", name(slot), ", which nothing has written"));
      if (state->shared) return Wrong(i, absl::StrCat("reads ", name(slot), ", which has rows of the shared expert"));
      if (state->chunk != op(i).chunk || state->num_chunks != op(i).num_chunks)
        return Wrong(i, absl::StrCat("reads ", name(slot), ", which has the rows of chunk ", state->chunk));
      if (!state->forward && !Depends(i, state->writer))
        return Wrong(
            i, absl::StrCat("reads ", name(slot), " without depending on op ", state->writer, ", which writes it"));
      state->readers.push_back(i);
      if (op(i).kind != MicroOpKind::kSave) continue;
      if (slots->IsSaved(slot.kind, op(i).chunk)) return Wrong(i, "saves the same rows twice");
      slots->Save(slot.kind, op(i).chunk);
    }
    for (const BufferSlot& slot : op(i).writes) {
      if (!IsShared(op(i)) && !written_.insert({slot.kind, op(i).chunk}).second)
        return Wrong(i, absl::StrCat("writes the same rows a second time, to ", name(slot)));
      std::optional<SlotState>& state = slots->Of(slot);
      if (state.has_value()) {
        for (const int reader : state->readers) {
          if (!Depends(i, reader))
            return Wrong(
                i, absl::StrCat("overwrites ", name(slot), " without depending on op ", reader, ", which reads it"));
        }
        if (!state->forward && !Depends(i, state->writer))
          return Wrong(i, absl::StrCat("overwrites ", name(slot), " without depending on op ", state->writer,
                                       ", which wrote it"));
      }
      if (op(i).kind == MicroOpKind::kRestore && !slots->IsSaved(slot.kind, op(i).chunk))
        return Wrong(i, absl::StrCat("restores ", name(slot), ", whose rows were not saved"));
      state = SlotState{.chunk = op(i).chunk,
                        .num_chunks = op(i).num_chunks,
                        .shared = IsShared(op(i)),
                        .forward = false,
                        .writer = i,
                        .readers = {}};
    }
    return absl::OkStatus();
  }

  // Whether `i` depends on all earlier ops that fit, and on one at least where `some`.
  template <class Fits>
  bool DependsOnAll(int i, bool some, const Fits& fits) const {
    bool found = false;
    for (int j = 0; j < size(); ++j) {
      if (!fits(op(j))) continue;
      if (j >= i || !Depends(i, j)) return false;
      found = true;
    }
    return found || !some;
  }

  // Checks what an op needs besides buffers.
  absl::Status CheckOrder(int i) const {
    const MicroOp& op = this->op(i);
    const auto same_rows = [&op](const MicroOp& other) {
      return other.num_chunks == 1 || op.num_chunks == 1 || other.chunk == op.chunk;
    };
    const bool sends = op.kind == MicroOpKind::kDispatch && op.pass == Pass::kForward;
    if (sends && !backward_ && !DependsOnAll(i, true, [&](const MicroOp& other) {
          return other.kind == MicroOpKind::kGate && same_rows(other);
        }))
      return Wrong(i, "does not depend on a gate of its rows");
    for (int j = 0; j < i; ++j) {
      const MicroOp& gather = this->op(j);
      if (!IsGather(gather.kind) || gather.pass != op.pass || !same_rows(gather) || Depends(i, j)) continue;
      const bool in_place = IsGather(op.kind) && !op.reads.empty();  // which reads and writes
      const bool reads_it = gather.reads.empty() ? op.kind == MicroOpKind::kDispatch && gather.rows == RowKind::kTokens
                                                 : op.kind == MicroOpKind::kCombine || in_place;
      if (reads_it) return Wrong(i, absl::StrCat("does not depend on op ", j, ", whose rows it takes"));
    }
    if (IsGather(op.kind) && !op.reads.empty()) {
      for (int j = 0; j < i; ++j) {
        const MicroOp& combine = this->op(j);
        if (combine.kind == MicroOpKind::kCombine && combine.pass == op.pass && same_rows(combine))
          return Wrong(i, absl::StrCat("changes what op ", j, " has sent"));
      }
    }
    // What copies gather or add of their own rows is what combines have made of them.
    if (IsGather(op.kind) && op.group == Group::kCopies && op.reads.empty()) {
      const auto makes_it = [&](const MicroOp& other) {
        if (other.kind == MicroOpKind::kGate) return backward_;
        const bool other_part = other.num_parts == op.num_parts && other.part != op.part;
        return other.kind == MicroOpKind::kCombine && same_rows(other) && !other_part;
      };
      const bool whole = op.rows == RowKind::kTokens;
      if (!DependsOnAll(i, true, [&](const MicroOp& other) {
            return makes_it(other) && (whole || other.kind == MicroOpKind::kCombine);
          }))
        return Wrong(i, "does not depend on those who make its rows");
    }
    if (op.kind == MicroOpKind::kCombine && !DependsOnAll(i, false, IsShared))
      return Wrong(i, "does not depend on the shared expert, whose rows it adds to");
    if (op.kind == MicroOpKind::kGate && backward_ && !DependsOnAll(i, true, [&](const MicroOp& other) {
          const bool gathers = other.kind == MicroOpKind::kAllGather && other.rows == RowKind::kChoices;
          return (other.kind == MicroOpKind::kCombine || gathers) && same_rows(other);
        }))
      return Wrong(i, "does not depend on the gradients of its rows' weights");
    return absl::OkStatus();
  }

  // Checks that it has each of its parts once, and that rows come back from where they went.
  absl::Status CheckParts(const MicroOp& of) const {
    std::vector<int> times(static_cast<size_t>(of.num_parts), 0);
    bool alike = true;
    for (const MicroOp& op : ops_) {
      const bool sends_both = !IsGather(op.kind) && IsCommunicating(op.kind) && !IsGather(of.kind);
      if (sends_both && op.group != of.group)
        return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule_.name, ", ",
                                                       backward_ ? "backward" : "forward", ": rows go among ",
                                                       GroupName(of.group), " and among ", GroupName(op.group)));
      if (op.kind != of.kind || op.chunk != of.chunk || op.pass != of.pass || op.group != of.group) continue;
      alike = alike && op.num_parts == of.num_parts;
      if (alike) ++times[static_cast<size_t>(op.part)];
    }
    if (alike && std::count(times.begin(), times.end(), 1) == of.num_parts) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule ", schedule_.name, ", ", backward_ ? "backward" : "forward", ": ", MicroOpKindName(of.kind),
        " of chunk ", of.chunk, " is not in ", of.num_parts, " parts, each once"));
  }

  // Checks that each chunk is gated, computed and combined once, in backward by gradients.
  absl::Status CheckCounts() const {
    const Pass pass = backward_ ? Pass::kBackward : Pass::kForward;
    const auto chunks = static_cast<size_t>(schedule_.num_chunks);
    std::vector<int> gated(chunks, 0), computed(chunks, 0), combined(chunks, 0), weights(chunks, 0);
    int shared = 0;
    for (const MicroOp& op : ops_) {
      shared += IsShared(op) ? 1 : 0;
      if (IsCommunicating(op.kind)) RETURN_IF_ERROR(CheckParts(op));
      for (size_t chunk = 0; op.kind == MicroOpKind::kGate && chunk < chunks; ++chunk) {
        if (op.num_chunks == 1 || op.chunk == static_cast<int>(chunk)) ++gated[chunk];
      }
      if (op.num_chunks != schedule_.num_chunks || op.pass != pass) continue;
      const auto chunk = static_cast<size_t>(op.chunk);
      if (IsRouted(op)) ++computed[chunk];
      if (op.kind == MicroOpKind::kCombine) {
        if (op.part == 0) ++combined[chunk];
      }
      if (op.kind == MicroOpKind::kWeights) ++weights[chunk];
    }
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      if (gated[chunk] == 1 && computed[chunk] == 1 && combined[chunk] == 1 && weights[chunk] == (backward_ ? 1 : 0))
        continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "schedule ", schedule_.name, ", ", backward_ ? "backward" : "forward", ": chunk ", chunk, " is gated ",
          gated[chunk], " times, computed ", computed[chunk], " times, combined ", combined[chunk], " times",
          backward_ ? absl::StrCat(", its weights' gradients ", weights[chunk], " times") : "", "; each must be once"));
    }
    const auto forward_shared = std::count_if(schedule_.forward.begin(), schedule_.forward.end(), IsShared);
    if (shared <= 1 && (!backward_ || shared == forward_shared)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("schedule ", schedule_.name, ", ", backward_ ? "backward" : "forward", ": ", shared,
                     " shared-expert ops", backward_ ? absl::StrCat(", ", forward_shared, " in forward") : ""));
  }

  const MoeSchedule& schedule_;
  const bool backward_;
  const std::vector<MicroOp>& ops_;
  std::set<std::pair<BufferKind, int>> written_;  // which chunks' rows
  std::vector<std::vector<char>> reach_;          // [i][j < i] whether op i depends on op j
};

}  // namespace

absl::Status Validate(const MoeSchedule& schedule) {
  if (schedule.num_chunks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ": ", schedule.num_chunks, " chunks"));
  }
  Slots slots;
  RETURN_IF_ERROR(ListCheck(schedule, false).Check(&slots));
  if (schedule.backward.empty()) return absl::OkStatus();
  slots.NextList();
  RETURN_IF_ERROR(ListCheck(schedule, true).Check(&slots));
  for (const BufferKind kind : {BufferKind::kInput, BufferKind::kHidden}) {
    const bool restores = std::any_of(schedule.backward.begin(), schedule.backward.end(), [kind](const MicroOp& op) {
      return KindsOf(op.writes)[static_cast<size_t>(kind)];
    });
    if (!restores || !schedule.Keeps(kind)) continue;
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ": keeps some slots of ",
                                                   BufferKindName(kind), " and restores others"));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::pipeline
