// Moves experts between ranks between two steps, with masters and moments: packing p becomes q.
//
//   Prepare  each rank allocates memory for its new experts, or room in a file for masters and moments of all its later
//            experts, and learns whether all ranks could
//   Run      new groups; values by all-to-all, a layer at a time, within a group of the old packing; a barrier; then
//            every rank has its new experts, and the old memory or file is gone
//
// Masters and moments may move between memory and a file here.  At most two layers of each file are in memory; until
// the barrier there are two files.
//
// Until that barrier the parameters, the model and the old groups are unchanged on all ranks; after it a rank has all
// values.  An error aborts the group, and the job goes back to its last checkpoint.  Values keep their bits.  Both
// calls are collectives of the world; nothing else may be under way.  Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/frame_header.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/parameters/state_file.h"

namespace switchyard::train {

struct RepackOptions {
  int packing = 1;                      // to come
  int64_t available_bytes = INT64_MAX;  // that this rank may still use
  // Makes a file for masters and moments that do not fit into memory; none: they must fit.
  OpenStateFileFn open_offload = nullptr;
  bool offloads = false;                           // into that file, even if they fit into memory
  int64_t message_bytes = comm::kMaxPayloadBytes;  // at most, of the experts of a layer that go from a rank to another
};

class Repack {
 public:
  // Borrows the present groups and the parameters until Run is done.  Errors: CheckPacking's; the communicator's.
  static absl::StatusOr<std::unique_ptr<Repack>> Prepare(const ExpertGroups& groups, Parameters* parameters,
                                                         const RepackOptions& options, absl::Time deadline);

  // OK: every rank has room.  Else the error of the first rank without, the same on all.  Unavailable, of memory: "rank
  // 3: 2 more experts a layer take 4096 bytes, 1000 are available", or of a message that is too large;
  // ResourceExhausted, of the disk: "rank 3: offload: DIR: room for 4096 bytes: No space left on device".
  const absl::Status& refusal() const { return refusal_; }

  // The groups of the new packing, for Trainer::SetGroup before any step.  REQUIRES: no refusal; once.
  // Errors: the communicator's; the files' (a full one: ResourceExhausted, marked Lost); Internal for a message's size.
  absl::StatusOr<std::unique_ptr<ExpertGroups>> Run(absl::Time deadline);

 private:
  struct Move {
    int32_t expert = 0;
    int from = 0, to = 0;
  };
  Repack(const ExpertGroups& groups, Parameters* parameters, int packing);
  void PlanMoves();
  // Bytes that this rank sends to one other of one layer, at most.
  int64_t LargestMessage() const;
  absl::Status Allocate(const RepackOptions& options);
  absl::Status BringLayer(int32_t layer, absl::Span<ParameterBlock* const> from, absl::Span<ParameterBlock* const> to,
                          absl::Time deadline);
  absl::Status Bring(absl::Time deadline);

  const ExpertGroups& groups_;
  Parameters* const parameters_;
  const int packing_;
  std::vector<int32_t> residents_;  // after the move, by slot
  std::vector<Move> moves_;         // within this rank's old group, by expert
  NewExperts experts_;
  absl::Status refusal_;
};

}  // namespace switchyard::train
