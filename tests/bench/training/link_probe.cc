#include "tests/bench/training/link_probe.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/moe_schedule.h"

namespace switchyard::bench {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr int kEighths[] = {2, 3, 4, 5, 6, 8};

absl::Status Meet(comm::Communicator* comm) {
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> together,
                   comm->Barrier({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + kPatience}));
  return together->Wait();
}

}  // namespace

absl::StatusOr<Probe> OneAllToAll(comm::Communicator* rows, int64_t bytes, int chunks) {
  RETURN_IF_ERROR(Meet(rows));
  Probe probe = {.what = "all_to_all", .bytes = bytes, .begin = absl::Now(), .end = {}};
  std::vector<std::unique_ptr<comm::Work>> works;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<comm::Message> messages(static_cast<size_t>(rows->world()));
    for (int rank = 0; rank < rows->world(); ++rank) {
      if (rank == rows->rank()) continue;
      messages[static_cast<size_t>(rank)] =
          rows->NewMessage(pipeline::RowsOfChunk(bytes / rows->world(), chunk, chunks).count);
    }
    ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                     rows->AllToAllV({.comm_class = comm::CommClass::kAllToAll, .deadline = probe.begin + kPatience},
                                     std::move(messages)));
    works.push_back(std::move(work));
  }
  for (const std::unique_ptr<comm::Work>& work : works) RETURN_IF_ERROR(work->Wait());
  probe.end = absl::Now();
  return probe;
}

absl::StatusOr<std::vector<Probe>> ProbeAllToAlls(comm::Communicator* rows, int64_t most_bytes, int rounds) {
  std::vector<Probe> probes;
  for (int round = 0; round < rounds; ++round) {
    for (const int eighths : kEighths) {
      ASSIGN_OR_RETURN(Probe probe, OneAllToAll(rows, most_bytes * eighths / 8, 1));
      probes.push_back(std::move(probe));
    }
  }
  return probes;
}

absl::StatusOr<std::vector<Probe>> ProbeSums(comm::Communicator* sums, int64_t most_bytes, int rounds) {
  const int64_t element = DTypeBytes(DType::kF32);
  ASSIGN_OR_RETURN(const Tensor values, Tensor::Allocate(DType::kF32, {most_bytes / element}, Device::Cpu()));
  std::memset(values.view().raw(), 0, static_cast<size_t>(most_bytes / element * element));
  std::vector<Probe> probes;
  for (int round = 0; round < rounds; ++round) {
    for (const int eighths : kEighths) {
      const int64_t elements = most_bytes / element * eighths / 8;
      RETURN_IF_ERROR(Meet(sums));
      Probe probe = {.what = "sum", .bytes = elements * element, .begin = absl::Now(), .end = {}};
      ASSIGN_OR_RETURN(
          const std::unique_ptr<comm::Work> work,
          sums->AllReduceSum({.comm_class = comm::CommClass::kAllReduce, .deadline = probe.begin + kPatience},
                             values.view().Rows(0, elements)));
      RETURN_IF_ERROR(work->Wait());
      probe.end = absl::Now();
      probes.push_back(std::move(probe));
    }
  }
  return probes;
}

}  // namespace switchyard::bench
