#include "workers/serving/rank_experts_in_place.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/weights.h"

namespace switchyard::worker {

namespace {

constexpr int64_t kFilledAtOnce = 64 << 20;

}  // namespace

absl::StatusOr<bool> AgreeOnInPlace(int rank, int world, const absl::Status& mine, comm::RendezvousStore* store,
                                    absl::Time deadline) {
  absl::Status can = mine.ok() ? CheckMemoryFiles() : mine;
  const std::string machine = can.ok() ? MachineName() : "";
  if (can.ok() && machine.empty())
    can = absl::UnavailableError("this machine's boot_id or namespace of processes cannot be read");
  if (!can.ok() && !can.message().empty()) LogInfo("experts are not in place: ", can.message());
  std::vector<std::string> machines;
  ASSIGN_OR_RETURN(machines, comm::ExchangeValues(store, "experts_in_place", rank, world, machine, deadline));
  for (int other = 0; can.ok() && other < world; ++other) {
    if (machines[static_cast<size_t>(other)] == machine) continue;
    LogInfo("experts are not in place: rank ", other,
            machines[static_cast<size_t>(other)].empty()
                ? " says why"
                : " is on another machine, has another namespace of processes, or is bound to other processors");
    return false;
  }
  return can.ok();
}

RankExpertsInPlace::RankExpertsInPlace(const RankExpertFileInput& input, int rank, int world)
    : rank_(rank),
      num_layers_(static_cast<int>(input.config->num_moe_layers())),
      expert_(model::ExpertFormsOf(*input.config, input.type, DeviceKind::kCpu)),
      homes_(moe::ExpertLayout::Contiguous(static_cast<int>(input.config->num_experts), world)),
      all_experts_(moe::ExpertLayout::Contiguous(static_cast<int>(input.config->num_experts), 1)),
      experts_(num_layers_, homes_.num_experts(), expert_),
      others_(static_cast<size_t>(world)) {}

int64_t RankExpertsInPlace::OffsetOf(int rank, int layer, size_t n) const {
  const auto experts = static_cast<int64_t>(homes_.Residents(rank).size());
  int64_t offset = 0;
  for (int before = 0; before < layer; ++before) offset += experts * expert_.of(before).bytes;
  return n == 0 ? offset : offset + static_cast<int64_t>(n) * expert_.of(layer).bytes;
}

int64_t RankExpertsInPlace::BytesOf(int rank) const {
  return std::max(WholeHugePages(OffsetOf(rank, num_layers_, 0)), kHugePageBytes);
}

void RankExpertsInPlace::SetPlaces(int rank, const char* memory) {
  const absl::Span<const int32_t> of_rank = homes_.Residents(rank);
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (size_t n = 0; n < of_rank.size(); ++n)
      experts_.SetPlace({layer, of_rank[n]}, memory == nullptr ? nullptr : memory + OffsetOf(rank, layer, n));
  }
}

absl::StatusOr<std::unique_ptr<RankExpertsInPlace>> RankExpertsInPlace::Load(const RankExpertFileInput& input, int rank,
                                                                             int world,
                                                                             moe::ExpertFile::Progress progress) {
  std::unique_ptr<RankExpertsInPlace> made(new RankExpertsInPlace(input, rank, world));
  const int64_t bytes = made->BytesOf(rank);
  ASSIGN_OR_RETURN(const UniqueFd file, MakeMemoryFile(bytes));
  {
    ASSIGN_OR_RETURN(MemoryFileView view, MemoryFileView::Map(file.get(), 0, bytes, /*to_write=*/true));
    int64_t small = 0;
    for (int64_t done = 0; done < bytes; done += kFilledAtOnce) {
      if (!progress(done, 2 * bytes)) return absl::CancelledError("loading experts was stopped");
      ASSIGN_OR_RETURN(const int64_t small_here, view.FillWithHugePages(done, std::min(kFilledAtOnce, bytes - done)));
      small += small_here;
    }
    if (small > 0) LogWarn("experts: ", Mib(small), " are in small pages, as huge ones could not be had");
    const absl::Span<const int32_t> mine = made->homes_.Residents(rank);
    const auto place = [&](int layer, int32_t expert) {
      return view.data() + made->OffsetOf(rank, layer, static_cast<size_t>(expert - mine.front()));
    };
    const auto loading = [&](int64_t loaded, int64_t total) {
      const double share = total > 0 ? static_cast<double>(loaded) / static_cast<double>(total) : 1;
      return progress(bytes + static_cast<int64_t>(share * static_cast<double>(bytes)), 2 * bytes);
    };
    if (!mine.empty()) RETURN_IF_ERROR(LoadExpertsOf(input, {mine.begin(), mine.end()}, loading, place));
  }
  RETURN_IF_ERROR(SealMemoryFile(file.get()));
  ASSIGN_OR_RETURN(made->file_, ReopenToRead(file.get()));
  ASSIGN_OR_RETURN(made->view_, MemoryFileView::Map(made->file_.get(), 0, bytes, /*to_write=*/false));
  made->SetPlaces(rank, made->view_.data());
  return made;
}

absl::Status RankExpertsInPlace::Share(comm::RendezvousStore* store, absl::Time deadline) {
  End();
  const int world = homes_.num_ranks();
  std::vector<std::string> paths, errors;
  ASSIGN_OR_RETURN(paths, comm::ExchangeValues(store, "experts_in_place_file", rank_, world,
                                               PathOfMemoryFile(file_.get()), deadline));
  const absl::Status mapped = MapAll(paths);
  ASSIGN_OR_RETURN(errors, comm::ExchangeValues(store, "experts_in_place_error", rank_, world,
                                                mapped.ok() ? "" : mapped.message(), deadline));
  for (int rank = 0; rank < world; ++rank) {
    if (errors[static_cast<size_t>(rank)].empty()) continue;
    LogWarn("experts stay with their workers: rank ", rank, ": ", errors[static_cast<size_t>(rank)]);
    End();
    return absl::OkStatus();
  }
  shared_ = true;
  LogInfo("rank ", rank_, ": all experts are on this machine, ", Mib(bytes()), " of them here");
  return absl::OkStatus();
}

absl::Status RankExpertsInPlace::MapAll(const std::vector<std::string>& paths) {
  for (int rank = 0; rank < homes_.num_ranks(); ++rank) {
    if (rank == rank_) continue;
    ASSIGN_OR_RETURN(const UniqueFd file, OpenMemoryFile(paths[static_cast<size_t>(rank)], BytesOf(rank)));
    MemoryFileView& view = others_[static_cast<size_t>(rank)];
    ASSIGN_OR_RETURN(view, MemoryFileView::Map(file.get(), 0, BytesOf(rank), /*to_write=*/false));
    SetPlaces(rank, view.data());
  }
  return absl::OkStatus();
}

void RankExpertsInPlace::End() {
  shared_ = false;
  for (int rank = 0; rank < homes_.num_ranks(); ++rank) {
    if (rank == rank_) continue;
    SetPlaces(rank, nullptr);
    others_[static_cast<size_t>(rank)] = {};
  }
}

}  // namespace switchyard::worker
