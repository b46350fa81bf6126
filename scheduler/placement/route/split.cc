#include "scheduler/placement/route/split.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/popularity/popularity.h"

namespace switchyard::placement {

std::vector<int64_t> RowCounts::OfExperts() const {
  std::vector<int64_t> of_experts(num_experts, 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int expert = 0; expert < num_experts; ++expert) of_experts[expert] += At(rank, expert);
  }
  return of_experts;
}

absl::StatusOr<SplitTable> SplitTable::FromPieces(int num_ranks, int num_experts, std::vector<int32_t> offsets,
                                                  std::vector<SplitPiece> pieces) {
  const auto num_pairs = static_cast<size_t>(num_ranks) * static_cast<size_t>(num_experts);
  if (offsets.size() != num_pairs + 1 || offsets.front() != 0 ||
      offsets.back() != static_cast<int32_t>(pieces.size()) || !std::is_sorted(offsets.begin(), offsets.end())) {
    return absl::InvalidArgumentError(absl::StrCat("split: ", offsets.size(), " offsets of ", pieces.size(),
                                                   " pieces for ", num_ranks, " ranks and ", num_experts, " experts"));
  }
  SplitTable table;
  table.num_ranks_ = num_ranks;
  table.num_experts_ = num_experts;
  table.loads_.assign(static_cast<size_t>(num_ranks), 0);
  for (size_t pair = 0; pair < num_pairs; ++pair) {
    const auto rank = static_cast<int32_t>(pair / static_cast<size_t>(num_experts));
    for (int32_t i = offsets[pair]; i < offsets[pair + 1]; ++i) {
      const SplitPiece& piece = pieces[static_cast<size_t>(i)];
      if (piece.device < 0 || piece.device >= num_ranks || piece.rows < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("split: ", piece.rows, " rows of rank ", rank, " for device ", piece.device));
      }
      table.loads_[static_cast<size_t>(piece.device)] += piece.rows;
    }
  }
  table.offsets_ = std::move(offsets);
  table.pieces_ = std::move(pieces);
  return table;
}

absl::Span<const SplitPiece> SplitTable::Pieces(int source_rank, int expert) const {
  const size_t at = static_cast<size_t>(source_rank) * num_experts_ + expert;
  return absl::MakeConstSpan(pieces_).subspan(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

int64_t SplitTable::busiest() const { return loads_.empty() ? 0 : *std::max_element(loads_.begin(), loads_.end()); }

// Makes rows by (source, replica) of rows by replica.
class SplitBuilder {
 public:
  // `replica_rows` [P] sum to the counts of each expert.
  SplitBuilder(const RowCounts& counts, const ReplicaIndex& replicas, std::vector<int64_t> replica_rows)
      : counts_(counts), replicas_(replicas), open_(std::move(replica_rows)), staying_(open_.size()) {
    table_.num_ranks_ = counts.num_ranks;
    table_.num_experts_ = counts.num_experts;
    table_.loads_.assign(counts.num_ranks, 0);
    // First the rows that stay: a replica takes the rows of its own device before any others.
    for (int32_t replica = 0; replica < replicas.num_replicas(); ++replica) {
      const int32_t device = replicas.DeviceOf(replica);
      table_.loads_[device] += open_[replica];
      staying_[replica] = std::min<int64_t>(counts.At(device, replicas.ExpertOf(replica)), open_[replica]);
      open_[replica] -= staying_[replica];
    }
  }

  // Then the others, sources and replicas both in their order: as few pieces as can be.
  SplitTable Build() && {
    const size_t num_pairs = static_cast<size_t>(counts_.num_ranks) * counts_.num_experts;
    table_.offsets_.reserve(num_pairs + 1);
    table_.pieces_.reserve(num_pairs + 2 * open_.size());
    table_.offsets_.push_back(0);
    for (int rank = 0; rank < counts_.num_ranks; ++rank) {
      for (int expert = 0; expert < counts_.num_experts; ++expert) {
        AddPieces(rank, expert);
        table_.offsets_.push_back(static_cast<int32_t>(table_.pieces_.size()));
      }
    }
    return std::move(table_);
  }

 private:
  void AddPieces(int rank, int expert) {
    int64_t left = counts_.At(rank, expert);
    if (left == 0) return;
    const int32_t end = replicas_.EndReplica(expert);
    for (int32_t replica = replicas_.FirstReplica(expert); replica < end; ++replica) {
      if (replicas_.DeviceOf(replica) == rank) left -= staying_[replica];
    }
    for (int32_t replica = replicas_.FirstReplica(expert); replica < end; ++replica) {
      const int32_t device = replicas_.DeviceOf(replica);
      const int64_t taken = std::min(left, open_[replica]);
      left -= taken;
      open_[replica] -= taken;
      const int64_t rows = taken + (device == rank ? staying_[replica] : 0);
      if (rows > 0) table_.pieces_.push_back({device, static_cast<int32_t>(rows)});
    }
    SY_CHECK_EQ(left, 0);
  }

  const RowCounts& counts_;
  const ReplicaIndex& replicas_;
  std::vector<int64_t> open_;     // [P] rows that a replica still takes from others
  std::vector<int64_t> staying_;  // [P] rows of its own device
  SplitTable table_;
};

namespace {

void CheckShapes(const RowCounts& counts, const ReplicaIndex& replicas) {
  SY_CHECK_EQ(counts.num_ranks, replicas.num_devices());
  SY_CHECK_EQ(counts.num_experts, replicas.num_experts());
  SY_CHECK_EQ(counts.rows.size(), static_cast<size_t>(counts.num_ranks) * counts.num_experts);
}

// The time of each device [R] by rows of its replicas [P].
std::vector<int64_t> TimesOf(const ReplicaIndex& replicas, const LayerCosts& costs, const std::vector<int64_t>& rows) {
  std::vector<int64_t> times(replicas.num_devices(), 0);
  for (int32_t replica = 0; replica < replicas.num_replicas(); ++replica) {
    times[replicas.DeviceOf(replica)] += costs.OfExpert(rows[replica]);
  }
  return times;
}

int64_t BusiestOf(const std::vector<int64_t>& times) { return *std::max_element(times.begin(), times.end()); }

// While the busiest device has a small part of an expert, whose weights take longer than its rows, gives that to
// another replica with rows of the expert whose device stays less busy.
void JoinParts(const ReplicaIndex& replicas, const LayerCosts& costs, std::vector<int64_t>* rows) {
  std::vector<int64_t> times = TimesOf(replicas, costs, *rows);
  const auto join = [&](int32_t device) {
    for (const int32_t part : replicas.OnDevice(device)) {
      int64_t& of_part = (*rows)[part];
      const int expert = replicas.ExpertOf(part);
      if (of_part == 0 || costs.OfExpert(of_part) > costs.weights_ps) continue;
      for (int32_t other = replicas.FirstReplica(expert); other < replicas.EndReplica(expert); ++other) {
        int64_t& of_other = (*rows)[other];
        int64_t& time = times[replicas.DeviceOf(other)];
        const int64_t more = costs.OfExpert(of_other + of_part) - costs.OfExpert(of_other);
        if (other == part || of_other == 0 || time + more >= times[device]) continue;
        times[device] -= costs.OfExpert(of_part);
        time += more;
        of_other += of_part;
        of_part = 0;
        return true;
      }
    }
    return false;
  };
  // A part without rows never gets any again.
  while (join(static_cast<int32_t>(std::max_element(times.begin(), times.end()) - times.begin()))) {
  }
}

// Each expert whole, the dearest first, on that of its devices that is done first.
std::vector<int64_t> WholeExperts(const ReplicaIndex& replicas, const LayerCosts& costs,
                                  const std::vector<int64_t>& expert_rows) {
  std::vector<int32_t> order;
  for (int32_t expert = 0; expert < replicas.num_experts(); ++expert) order.push_back(expert);
  const auto is_only = [&](int32_t expert) { return replicas.NumReplicas(expert) == 1; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (is_only(a) != is_only(b)) return is_only(a);
    return expert_rows[a] > expert_rows[b];
  });
  std::vector<int64_t> rows(replicas.num_replicas(), 0), times(replicas.num_devices(), 0);
  for (const int32_t expert : order) {
    int32_t least = replicas.FirstReplica(expert);
    for (int32_t other = least + 1; other < replicas.EndReplica(expert); ++other) {
      if (times[replicas.DeviceOf(other)] < times[replicas.DeviceOf(least)]) least = other;
    }
    rows[least] = expert_rows[expert];
    times[replicas.DeviceOf(least)] += costs.OfExpert(expert_rows[expert]);
  }
  return rows;
}

}  // namespace

SplitTable SplitByCounts(const RowCounts& counts, const ReplicaIndex& replicas, const LayerCosts& costs) {
  CheckShapes(counts, replicas);
  // All rows that can stay do, the rest goes to the least loaded; from there only rows that must are moved.
  const std::vector<int64_t> of_experts = counts.OfExperts();
  std::vector<int64_t> rows(replicas.num_replicas()), foreign = of_experts;
  for (int32_t replica = 0; replica < replicas.num_replicas(); ++replica) {
    rows[replica] = counts.At(replicas.DeviceOf(replica), replicas.ExpertOf(replica));
    foreign[replicas.ExpertOf(replica)] -= rows[replica];
  }
  PourRows(replicas, foreign, absl::MakeSpan(rows));
  MinMaxLoads optimum = MinimizeBusiestFrom(replicas, std::move(rows));
  const auto reads_longer = [&](int64_t part) { return part > 0 && costs.OfExpert(part) <= costs.weights_ps; };
  if (costs.weights_ps > 0 && std::any_of(optimum.rows.begin(), optimum.rows.end(), reads_longer)) {
    std::vector<int64_t> joined = optimum.rows, whole = WholeExperts(replicas, costs, of_experts);
    JoinParts(replicas, costs, &joined);
    int64_t least = BusiestOf(TimesOf(replicas, costs, optimum.rows));
    for (std::vector<int64_t>* other : {&joined, &whole}) {
      const int64_t busiest = BusiestOf(TimesOf(replicas, costs, *other));
      if (busiest >= least) continue;
      least = busiest;
      optimum.rows = std::move(*other);
    }
  }
  return SplitBuilder(counts, replicas, std::move(optimum.rows)).Build();
}

SplitTable SplitAsPlanned(const RowCounts& counts, const ReplicaIndex& replicas, absl::Span<const int64_t> planned) {
  CheckShapes(counts, replicas);
  SY_CHECK_EQ(static_cast<int>(planned.size()), replicas.num_replicas());
  const std::vector<int64_t> of_experts = counts.OfExperts();
  std::vector<int64_t> rows;
  rows.reserve(planned.size());
  for (int expert = 0; expert < counts.num_experts; ++expert) {
    const popularity::Popularity parts = popularity::ScaledTo(
        planned.subspan(replicas.FirstReplica(expert), replicas.NumReplicas(expert)), of_experts[expert]);
    rows.insert(rows.end(), parts.begin(), parts.end());
  }
  return SplitBuilder(counts, replicas, std::move(rows)).Build();
}

std::vector<int64_t> PlannedRows(const ReplicaIndex& replicas, absl::Span<const int64_t> estimate) {
  return MinimizeBusiest(replicas, estimate).rows;
}

}  // namespace switchyard::placement
