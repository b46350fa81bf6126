// A MoE layer as a program, forward and backward: micro-ops over row ranges, in the order in which every rank launches
// them.
//
// The workers' executor runs the program and the simulator prices it (scheduler/simulator/).  A builder
// (build_expert_parallel.h) is a pure function of globally agreed inputs, so that all ranks hold the same program and
// launch the same collectives in the same order; their rows may differ, and a rank may have none.
//
// Ops are launched in list order.  An asynchronous op starts at its place in the list and is finished when the first op
// that depends on it is reached (or at the end), so whatever stands between runs under it.  Rows between ops are in
// buffers of a few slots each, which chunks take in turn: an op names those that it reads and writes.
//
// Plain data, thread-compatible, Abseil only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace switchyard::pipeline {

// What an op does with values (Pass::kForward) and, in brackets, with their gradients (Pass::kBackward).
enum class MicroOpKind : uint8_t {
  kGate,      // router: logits → chosen experts and weights (the router's gradients)
  kDispatch,  // rows → the ranks of their experts (the outputs' gradients, likewise)
  kExpert,    // expert FFNs over the rows that are here (the gradients of their inputs)
  kCombine,   // expert outputs → the ranks of their rows, added in top-k order (gradients of the inputs, likewise)
  kWeights,   // (gradients of the experts' weights)
  // Among ranks that compute parts of the same, as MicroOp::rows says:
  kAllGather,  // each rank's rows → all ranks of the group
  kAllReduce,  // rows of all ranks of the group, added → all of them
  // Of values alone:
  kRecompute,  // hidden rows again, from their input
  kSave,       // a buffer's rows → offload memory, where they stay until the next forward
  kRestore,    // rows in offload memory → a buffer
};

// What an op computes.  A backward program may have ops of values, too, which it computes, sends or copies again.
enum class Pass : uint8_t { kForward, kBackward };

// Which experts a kExpert op runs.
enum class ExpertSet : uint8_t { kRouted, kShared };

// Rows of a chunk on the ranks of their experts.
enum class BufferKind : uint8_t {
  kInput,           // as dispatched
  kHidden,          // inside experts, what the activation reads and what it makes
  kOutput,          // experts' outputs, and behind them what combine returns
  kOutputGradient,  // as dispatched
  kHiddenGradient,
  kInputGradient,  // as kOutput
};
inline constexpr int kNumBufferKinds = 6;

// Which ranks an op's messages travel among.  Ranks that hold shards of an expert's weights are a shard group (esp),
// one rank of each shard group make an expert group (ep); ranks with the same rows of input are copies (mp or tp).
enum class Group : uint8_t {
  kExperts,     // ep
  kShards,      // esp
  kCopies,      // mp
  kAllExperts,  // ep x esp: a row goes to all shards of its expert, and what comes back of them is added
  kSelf,        // rows stay where they are
};

// Of a gather or a sum.
enum class RowKind : uint8_t {
  kTokens,   // each rank's rows
  kChoices,  // a row for each expert that was chosen
};

// How rows are cut into chunks.
enum class Cut : uint8_t {
  kRows,   // ranges of each rank's rows (RowsOfChunk), of all experts
  kPeers,  // all rows; those of chunk c are for the c-th of n blocks of the group behind a rank's own (FasterMoE)
};

// Which of their rows copies (Group::kCopies) gate and send.
enum class CopySplit : uint8_t {
  kNone,        // each all of them
  kBeforeGate,  // each its part (RowsOfChunk)
  kBehindGate,  // each gates all, alike, and sends its part
};

struct BufferSlot {
  BufferKind kind = BufferKind::kInput;
  int slot = 0;
  bool operator==(const BufferSlot&) const = default;
};

struct MicroOp {
  MicroOpKind kind = MicroOpKind::kGate;
  Pass pass = Pass::kForward;
  int chunk = 0;                           // range `chunk` of `num_chunks` of each rank's rows (RowsOfChunk)
  int num_chunks = 1;                      // 1 = all rows
  ExpertSet experts = ExpertSet::kRouted;  // of kExpert
  Group group = Group::kExperts;           // of ops that communicate
  RowKind rows = RowKind::kTokens;         // of kAllGather and kAllReduce
  // Of a combine, and of a gather behind it: with the peers at these distances in the group, part `part` of
  // `num_parts`.
  int part = 0, num_parts = 1;
  std::vector<BufferSlot> reads = {}, writes = {};  // with the rows of its chunk
  // Indices of earlier ops of its list: those whose results it needs, and those that must have read what it overwrites.
  std::vector<int> deps = {};

  // The slot of this kind that the op reads or writes; -1 = none.
  int SlotOf(BufferKind of) const;
};

struct MoeSchedule {
  std::string name;  // "expert_parallel"
  int num_chunks = 1;
  Cut cut = Cut::kRows;
  CopySplit copies = CopySplit::kNone;
  std::vector<MicroOp> forward = {};
  std::vector<MicroOp> backward = {};  // empty: of inference; starts when forward is done

  // How many slots of this kind the program has.
  int NumSlots(BufferKind kind) const;
  // Whether backward reads what forward left in such buffers, so that each layer needs buffers of its own.
  bool Keeps(BufferKind kind) const;
  // Whether forward saves such rows of some chunk.
  bool Saves(BufferKind kind) const;
};

const char* MicroOpKindName(MicroOpKind kind);  // "dispatch"
const char* BufferKindName(BufferKind kind);    // "input"
const char* GroupName(Group group);             // "experts"
bool IsCommunicating(MicroOpKind kind);
inline bool IsGather(MicroOpKind kind) { return kind == MicroOpKind::kAllGather || kind == MicroOpKind::kAllReduce; }
bool IsCopying(MicroOpKind kind);
inline bool IsAsynchronous(MicroOpKind kind) { return IsCommunicating(kind) || IsCopying(kind); }

// InvalidArgument names the op and what is wrong with it.  Checked of each list:
// - deps point backwards; chunks and parts are in range; ops name the buffers and groups that their kind needs;
// - what an op reads was written by its chunk, and it depends on who wrote; a slot is overwritten by an op that depends
//   on its last readers; what is restored was saved;
// - each chunk is computed and combined once, behind a gate, in all parts; rows come back from the group that they went
//   to;
// - a dispatch depends on earlier gathers of tokens, a combine, and another gather, on those of the buffer that it
//   reads, a gather or sum of copies' own rows on the combines that make them, the router's gradients on gathers of
//   choices' own;
// - there is at most one shared-expert op, on which combines depend.
// "Depends": directly or through others.
absl::Status Validate(const MoeSchedule& schedule);

// Rows [begin, begin + count) of a rank that has `rows`: parts differ by one row at most, the longer ones first; some
// are empty when there are fewer rows than chunks.  REQUIRES: rows >= 0, 0 <= chunk < num_chunks.
struct ChunkRange {
  int64_t begin = 0;
  int64_t count = 0;
};
ChunkRange RowsOfChunk(int64_t rows, int chunk, int num_chunks);

// Of a group of `size`: the chunk (Cut::kPeers) in which rows of place `from` go to place `to`.  REQUIRES: size is a
// multiple of num_chunks.
int ChunkOfPeers(int from, int to, int size, int num_chunks);
// The part (MicroOp::part) in which rows of place `from` go to place `to`.
int PartOfPeers(int from, int to, int size, int num_parts);
// The distances, of `size`, of the places that exchange in this part.
ChunkRange PeersOfPart(int size, int part, int num_parts);

}  // namespace switchyard::pipeline
