// Measures the links by themselves, before any step: all-to-alls and sums of rising sizes, and micro-ops beside whole
// tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::bench {

struct Probe {
  std::string what;   // "all_to_all", "sum"
  int64_t bytes = 0;  // of a rank's rows, those that stay among them; of the tensor
  absl::Time begin, end;
};

// rounds of each size, each begun by all ranks at once: eighths of the bytes, from two (shorter sums go another way,
// workers/comm/local/reduce_work.h) to all.
absl::StatusOr<std::vector<Probe>> ProbeAllToAlls(comm::Communicator* rows, int64_t most_bytes, int rounds);
absl::StatusOr<std::vector<Probe>> ProbeSums(comm::Communicator* sums, int64_t most_bytes, int rounds);

// An all-to-all of so many bytes in so many messages to each rank, started one after the other, then waited for.
absl::StatusOr<Probe> OneAllToAll(comm::Communicator* rows, int64_t bytes, int chunks);

}  // namespace switchyard::bench
