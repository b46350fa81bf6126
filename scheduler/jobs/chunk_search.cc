#include "scheduler/jobs/chunk_search.h"

#include <algorithm>
#include <iterator>

#include "scheduler/base/check.h"

namespace switchyard::jobs {

ChunkSearch::ChunkSearch(int32_t least, int32_t most) : least_(least), most_(most) {
  SY_CHECK_GE(least, 1);
  SY_CHECK_GE(most, least);
}

ChunkSearch::Trial ChunkSearch::Begin(int64_t rows) const {
  Trial trial = {.least = least_, .most = most_};
  for (const auto& [chunks, range] : ranges_) {
    if (range.to < rows) trial.least = chunks;
    if (range.from <= rows) continue;
    trial.most = chunks;
    break;
  }
  return trial;
}

int32_t ChunkSearch::BestOf(const Trial& trial) {
  const auto faster = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::min_element(trial.ns.begin(), trial.ns.end(), faster)->first;  // of equal ones the fewest
}

int32_t ChunkSearch::NextOf(const Trial& trial) {
  for (const int32_t end : {trial.least, trial.most}) {
    if (!trial.ns.contains(end)) return end;
  }
  const bool upwards = trial.ns.at(trial.least) <= trial.ns.at(trial.most);
  const int32_t by = upwards ? 1 : -1;
  int32_t at = upwards ? trial.least : trial.most;
  for (;;) {
    const int32_t next = at + by;
    if (next < trial.least || next > trial.most) return 0;
    const auto tried = trial.ns.find(next);
    if (tried == trial.ns.end()) return next;
    if (tried->second >= trial.ns.at(at)) return 0;
    at = next;
  }
}

ChunkSearch::Answer ChunkSearch::Next(int64_t rows) const {
  const auto begun = trials_.find(rows);
  if (begun == trials_.end()) {
    for (const auto& [chunks, range] : ranges_) {
      if (range.from <= rows && rows <= range.to) return {.chunks = chunks, .found = true};
    }
  }
  const Trial trial = begun == trials_.end() ? Begin(rows) : begun->second;
  if (trial.found > 0) return {.chunks = trial.found, .found = true};
  if (trial.least == trial.most) return {.chunks = trial.least, .found = true};
  return {.chunks = NextOf(trial), .found = false};
}

void ChunkSearch::Record(int64_t rows, int64_t ns) {
  const Answer answer = Next(rows);
  SY_CHECK(!answer.found);
  Trial& trial = trials_.try_emplace(rows, Begin(rows)).first->second;
  trial.ns[answer.chunks] = ns;
  if (NextOf(trial) != 0) return;
  trial.found = BestOf(trial);
  const bool at_learned_end =
      (trial.found == trial.least && trial.least != least_) || (trial.found == trial.most && trial.most != most_);
  rises_ = rises_ && !at_learned_end;
  Learn(rows, trial.found);
}

// Trials of several B may end in another order than they began: then a B may be beyond a neighbour's range.
void ChunkSearch::Learn(int64_t rows, int32_t chunks) {
  const auto after = ranges_.upper_bound(chunks), at = ranges_.lower_bound(chunks);
  const bool fits = (after == ranges_.end() || rows < after->second.from) &&
                    (at == ranges_.begin() || rows > std::prev(at)->second.to);
  rises_ = rises_ && fits;
  if (!fits) return;
  Range& range = ranges_.try_emplace(chunks, Range{.from = rows, .to = rows}).first->second;
  range = {.from = std::min(range.from, rows), .to = std::max(range.to, rows)};
}

std::map<int32_t, int64_t> ChunkSearch::Tried(int64_t rows) const {
  const auto trial = trials_.find(rows);
  return trial == trials_.end() ? std::map<int32_t, int64_t>() : trial->second.ns;
}

bool ChunkSearch::HasOneMinimum(int64_t rows) const {
  bool rising = false;
  int64_t before = INT64_MAX;
  for (const auto& [chunks, ns] : Tried(rows)) {
    if (rising && ns < before) return false;
    rising = rising || ns > before;
    before = ns;
  }
  return true;
}

bool ChunkSearch::RisesWithRows() const { return rises_; }

}  // namespace switchyard::jobs
