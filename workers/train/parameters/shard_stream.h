// Whole values of sharded blocks (dense_shards.h), on the ranks that write them into checkpoints.
//
// Each rank reads the values of what it writes, one after another.  They arrive in rounds, which all ranks make
// together: one all-to-all of class all_reduce, in which a rank gets at most kRoundElements values.  So a rank needs
// little memory, and all proceed as fast as the slowest disk.  Thread-compatible; blocks must not change.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {

inline constexpr int64_t kRoundElements = int64_t{1} << 20;

struct ShardStreamOptions {
  bool with_weights = false;  // masters of all parts come once more before the rest, for the file of weights
  absl::Duration round_limit = absl::Hours(1);  // the longest that ranks wait for each other
  std::function<bool()> given_up = [] { return false; };
  int64_t round_elements = kRoundElements;  // tests choose others; the same on all ranks
};

// Waits for the messages of a round.  Errors: the communicator's; Cancelled: given up.
absl::Status AwaitRound(comm::Work* work, absl::Time deadline, const std::function<bool()>& given_up);

class ShardStream {
 public:
  // All borrowed.  Reads nothing yet.  blocks: those of Parameters.
  ShardStream(comm::Communicator* comm, absl::Span<const ParameterBlock> blocks, ShardStreamOptions options);

  // The next values that this rank reads, in AccDType: of each part of each sharded block that it writes (`writer`), in
  // order, the master (with_weights); then of each such part in order all that StateOf names.  Blocks until they are
  // here.  Errors: the communicator's; Cancelled: given up.  After one no further call is allowed: the others, which
  // wait for this rank's part of a round, end when they give up, too, or with the group.
  // REQUIRES: whole values, no more than there are.
  absl::Status Read(absl::Span<char> to);
  // Makes the rounds that other ranks still need.  Every rank calls it at the end.
  absl::Status Finish();

 private:
  // All values of a part, of one of kState.
  struct Item {
    const ParameterBlock* block = nullptr;
    size_t kept = 0;
    ElementRange range = {};
  };
  // A rank's items, and how far they have been read.
  struct Plan {
    std::vector<Item> items = {};
    size_t next = 0;       // item
    int64_t done = 0;      // elements of it
    int64_t elements = 0;  // of all items
  };
  void Append(const ParameterBlock& block, bool weights);
  // Calls `use` with the items' ranges that the next round brings.
  static void Advance(Plan* plan, int64_t elements, const std::function<void(const Item&, const ElementRange&)>& use);
  absl::Status Round();

  comm::Communicator* const comm_;
  const ShardStreamOptions options_;
  std::vector<Plan> plans_;  // [R]
  int64_t rounds_ = 0, rounds_done_ = 0;
  std::string here_;  // values that have come and were not read
  size_t read_ = 0;   // bytes of them
};

}  // namespace switchyard::train
