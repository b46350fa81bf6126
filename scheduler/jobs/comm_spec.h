// How the collectives of a training job's ranks share the network: the granularity, into how many chunks each MoE
// layer's rows are cut; the replicas of experts; and the modes (reduce_policy.h says what they mean), of which jobs
// have preempt, as no other is faster (tests/bench/training.md): the others are for benchmarks. Sources: Lina
// (scheduler/PAPERS.md, "Lina: training"); fair is what PyTorch's DDP does; granularity is MPMoE's. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::jobs {

enum class CommMode : uint8_t {
  kFair,              // sums beside all-to-alls whenever they are ready, in buckets as DDP's
  kFixed,             // buckets, only between a layer's all-to-alls and the next layer's
  kArLast,            // sums when backward is done
  kPriority,          // whole tensors, none started while an all-to-all waits, runs or is about to come
  kPriorityTicketed,  // the same on one ordered channel, in the order that rank 0 sends, as in the paper
  kPartition,         // kPriority with tensors cut into micro-ops
  kPipelining,        // kPartition with experts' products pipelined behind micro-ops of the all-to-alls
  kFull,              // kPipelining with packing of experts (expert_packing.h)
  kPreempt,           // kPartition, on connections on which all-to-alls overtake sums frame by frame
};
inline constexpr int kNumCommModes = 9;

// "fair", "fixed", "ar_last", "priority", "priority_ticketed", "partition", "pipelining", "full", "preempt".
absl::string_view CommModeName(CommMode mode);
// InvalidArgument with all names.
absl::StatusOr<CommMode> ParseCommMode(absl::string_view name);

enum class ChunkRule : uint8_t {
  kAuto,  // preempt: by what layers take, measured before step 1; pipelining, full: by the size of pieces; else 1
  kFixed,
};

struct Granularity {
  ChunkRule rule = ChunkRule::kAuto;
  int32_t chunks = 0;  // of kFixed: [1, pipeline::kMaxMicroBatches]
  bool operator==(const Granularity& other) const = default;
};

// "auto", or the number of chunks.
std::string GranularityName(const Granularity& granularity);
// InvalidArgument with all that there is.
absl::StatusOr<Granularity> ParseGranularity(absl::string_view name);

enum class PackingRule : uint8_t {
  kTrials,  // doubled in the first steps, while they become faster (expert_packing.h)
  kFixed,
};

// How many replicas of each expert there are.
struct PackingChoice {
  PackingRule rule = PackingRule::kFixed;
  int32_t replicas = 1;  // of kFixed: at least 1, a divisor of the ranks; else 0
  bool operator==(const PackingChoice& other) const = default;
};

// "trials", or the number of replicas.
std::string PackingChoiceName(const PackingChoice& packing);
// InvalidArgument with all that there is.
absl::StatusOr<PackingChoice> ParsePackingChoice(absl::string_view name);

// Lina's 30 MB (PAPERS.md, LI-15) pass in 2.4 ms on its links.
inline constexpr int64_t kPiecesByLink = 0;
inline constexpr double kPieceSeconds = 5e-3;
inline constexpr int64_t kLeastPiece = int64_t{64} << 10, kMostPiece = int64_t{30} << 20;
// For links over which a rank sends so many bytes a second; 0: not measured.
int64_t PieceBytesOf(double bytes_per_second);

struct CommunicationSpec {
  CommMode mode = CommMode::kPreempt;
  // Of a sum of gradients, between which all-to-alls go; kPiecesByLink: as many as pass in kPieceSeconds.
  int64_t piece_bytes = kPiecesByLink;
  Granularity granularity = {};
  PackingChoice packing = {};
  bool operator==(const CommunicationSpec& other) const = default;
};

// Whether the job's first steps decide how many replicas of its experts there are.
bool TriesPackings(const CommunicationSpec& spec);
// How many there are of each expert when the job begins.
int32_t FirstPacking(const CommunicationSpec& spec);
// The most that a job may have.  Each packing but 1 uses two of the world's 15 splits
// (workers/comm/core/communicator.h): this one can be reached by doubling, and undone.
inline constexpr int32_t kMostPacking = 64;
// InvalidArgument: replicas that do not divide the ranks, or are too many.
absl::Status CheckPackingChoice(const CommunicationSpec& spec, int32_t ranks);

// Whether the ranks of a job decide into how many chunks layers are cut, and journal it (chunk_decision.h).
bool DecidesChunks(const CommunicationSpec& spec);

// InvalidArgument: a number of chunks that is none.
absl::Status CheckGranularity(const CommunicationSpec& spec);

}  // namespace switchyard::jobs
