#include "scheduler/pipeline/moe_schedule.h"

#include <algorithm>

#include "scheduler/base/check.h"

namespace switchyard::pipeline {
int MicroOp::SlotOf(BufferKind of) const {
  for (const std::vector<BufferSlot>* slots : {&reads, &writes}) {
    for (const BufferSlot& slot : *slots) {
      if (slot.kind == of) return slot.slot;
    }
  }
  return -1;
}

int MoeSchedule::NumSlots(BufferKind kind) const {
  int slots = 0;
  for (const std::vector<MicroOp>* ops : {&forward, &backward}) {
    for (const MicroOp& op : *ops) slots = std::max(slots, op.SlotOf(kind) + 1);
  }
  return slots;
}

bool MoeSchedule::Keeps(BufferKind kind) const {
  std::vector<int> written;
  for (const MicroOp& op : backward) {
    for (const BufferSlot& slot : op.reads) {
      if (slot.kind == kind && std::count(written.begin(), written.end(), slot.slot) == 0) return true;
    }
    for (const BufferSlot& slot : op.writes) {
      if (slot.kind == kind) written.push_back(slot.slot);
    }
  }
  return false;
}

bool MoeSchedule::Saves(BufferKind kind) const {
  return std::any_of(forward.begin(), forward.end(),
                     [kind](const MicroOp& op) { return op.kind == MicroOpKind::kSave && op.SlotOf(kind) >= 0; });
}

const char* MicroOpKindName(MicroOpKind kind) {
  static constexpr const char* kNames[] = {"gate",       "dispatch",   "expert",    "combine", "weights",
                                           "all_gather", "all_reduce", "recompute", "save",    "restore"};
  return kNames[static_cast<int>(kind)];
}

const char* BufferKindName(BufferKind kind) {
  static constexpr const char* kNames[] = {"input",           "hidden",          "output",
                                           "output gradient", "hidden gradient", "input gradient"};
  return kNames[static_cast<int>(kind)];
}

const char* GroupName(Group group) {
  static constexpr const char* kNames[] = {"experts", "shards", "copies", "all experts", "self"};
  return kNames[static_cast<int>(group)];
}

bool IsCommunicating(MicroOpKind kind) {
  return kind == MicroOpKind::kDispatch || kind == MicroOpKind::kCombine || IsGather(kind);
}

bool IsCopying(MicroOpKind kind) { return kind == MicroOpKind::kSave || kind == MicroOpKind::kRestore; }

ChunkRange RowsOfChunk(int64_t rows, int chunk, int num_chunks) {
  SY_CHECK_GE(rows, 0);
  SY_CHECK_GE(chunk, 0);
  SY_CHECK_LT(chunk, num_chunks);
  const int64_t base = rows / num_chunks;
  const int64_t longer = rows % num_chunks;  // so many chunks have one row more
  const int64_t before = chunk < longer ? chunk : longer;
  return {chunk * base + before, base + (chunk < longer ? 1 : 0)};
}

int ChunkOfPeers(int from, int to, int size, int num_chunks) {
  SY_CHECK_EQ(size % num_chunks, 0);
  const int block = size / num_chunks;
  return (to / block - from / block + num_chunks) % num_chunks;
}

ChunkRange PeersOfPart(int size, int part, int num_parts) {
  const int64_t begin = int64_t{size} * part / num_parts, end = int64_t{size} * (part + 1) / num_parts;
  return {begin, end - begin};
}

// The part whose PeersOfPart has the distance.
int PartOfPeers(int from, int to, int size, int num_parts) {
  const int64_t distance = (to - from + size) % size;
  return static_cast<int>(((distance + 1) * num_parts + size - 1) / size - 1);
}

}  // namespace switchyard::pipeline
