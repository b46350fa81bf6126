#include "tests/bench/job_choices.h"

#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/train/chunks/layer_times.h"
#include "workers/train/reduce/piece_bytes.h"

namespace switchyard::bench {

absl::StatusOr<int64_t> ChoosePieceBytes(comm::Communicator* comm, absl::Duration patience) {
  ASSIGN_OR_RETURN(const int64_t bytes, train::MeasurePieceBytes(comm, MonotonicNow() + patience));
  if (comm->rank() == 0) std::cerr << absl::StrCat("pieces of ", bytes >> 10, " KiB\n");
  return bytes;
}

absl::Status ChooseChunks(comm::Communicator* comm, train::Trainer* trainer, absl::Duration patience) {
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(const std::vector<train::ChunkTime> times,
                   train::MeasureLayers(
                       {.comm = comm,
                        .run = [&](int32_t chunks) { return trainer->RunLayers(chunks, MonotonicNow() + patience); },
                        .limit = patience}));
  trainer->DropBuffers();
  const int32_t chunks = train::FastestOf(times).chunks;
  if (comm->rank() == 0) {
    std::cerr << train::ChunkTimesText(times) << ": " << chunks << " chosen; measured in "
              << absl::FormatDuration(absl::Now() - begin) << "\n";
  }
  trainer->set_chunks(chunks);
  return absl::OkStatus();
}

}  // namespace switchyard::bench
