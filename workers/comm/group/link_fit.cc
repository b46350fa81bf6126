#include "workers/comm/group/link_fit.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/call_tag.h"

namespace switchyard::comm {
namespace {

// Seconds of one all-to-all on this rank.
absl::StatusOr<double> OneExchange(Communicator* comm, const CommCall& call, int64_t bytes) {
  std::vector<Message> out;
  for (int rank = 0; rank < comm->world(); ++rank) {
    out.push_back(comm->NewMessage(rank == comm->rank() ? 0 : bytes));
    if (rank != comm->rank()) std::memset(out.back().payload(), 0, static_cast<size_t>(bytes));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Work> barrier, comm->Barrier(call));
  RETURN_IF_ERROR(barrier->Wait());
  const absl::Time begin = MonotonicNow();
  ASSIGN_OR_RETURN(const std::unique_ptr<Work> work, comm->AllToAllV(call, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  return absl::ToDoubleSeconds(MonotonicNow() - begin);
}

// The median of the slowest rank's times, alike on all ranks.
absl::StatusOr<double> AgreeOnMedian(Communicator* comm, const CommCall& call, const std::vector<double>& mine) {
  const char* const bytes = reinterpret_cast<const char*>(mine.data());
  ASSIGN_OR_RETURN(const std::unique_ptr<Work> work, comm->AllGather(call, {bytes, mine.size() * sizeof(double)}));
  RETURN_IF_ERROR(work->Wait());
  std::vector<double> slowest(mine.size(), 0);
  for (const Message& message : work->received()) {
    std::vector<double> theirs(mine.size());
    std::memcpy(theirs.data(), message.payload(), theirs.size() * sizeof(double));
    for (size_t i = 0; i < theirs.size(); ++i) slowest[i] = std::max(slowest[i], theirs[i]);
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest[slowest.size() / 2];
}

}  // namespace

fleet::LinkFit FitLinks(absl::Span<const LinkSample> samples) {
  if (samples.size() < 3) return {};
  const LinkSample &first = samples.front(), &last = samples.back();
  const double bytes = last.bytes - first.bytes, seconds = last.seconds - first.seconds;
  if (!(bytes > 0 && seconds > 0)) return {};
  fleet::LinkFit fit = {.bytes_per_second = bytes / seconds};
  fit.start_seconds = std::max(0.0, first.seconds - first.bytes / fit.bytes_per_second);
  double mean = 0, off = 0, all = 0;
  for (const LinkSample& sample : samples) mean += sample.seconds / static_cast<double>(samples.size());
  for (const LinkSample& sample : samples) {
    const double error = sample.seconds - fit.Seconds(sample.bytes), from_mean = sample.seconds - mean;
    off += error * error;
    all += from_mean * from_mean;
  }
  fit.r_squared = 1 - off / all;
  return fit;
}

absl::StatusOr<fleet::LinkFit> MeasureLinks(Communicator* comm, absl::Time deadline) {
  if (comm->world() == 1) return fleet::LinkFit();
  std::vector<LinkSample> samples;
  int64_t number = 0;
  for (int64_t bytes = kLeastLinkBytes; bytes <= kMostLinkBytes; bytes *= 4) {
    const CommCall call = {.deadline = deadline, .tag = NumberedTag(CallUse::kLinkMeasure, number++)};
    std::vector<double> times;
    for (int i = 0; i < kLinkRepeats; ++i) {
      ASSIGN_OR_RETURN(times.emplace_back(), OneExchange(comm, call, bytes));
    }
    ASSIGN_OR_RETURN(const double seconds, AgreeOnMedian(comm, call, times));
    samples.push_back({.bytes = static_cast<double>(bytes * (comm->world() - 1)), .seconds = std::max(seconds, 1e-9)});
    if (samples.size() >= 3 && absl::Seconds(seconds) >= kLongEnoughLink) break;
  }
  return FitLinks(samples);
}

}  // namespace switchyard::comm
