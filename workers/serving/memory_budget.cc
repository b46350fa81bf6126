#include "workers/serving/memory_budget.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::worker {
namespace {

// Claims come from other processes, so a sum that would overflow stays at the largest number.
int64_t Add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

bool IsSize(const std::string& text, int64_t* bytes) { return absl::SimpleAtoi(text, bytes) && *bytes >= 0; }

// The budget that `pool`, one of the rank's, leaves to the rank.
MemoryBudget SharePool(int rank, const MemoryPool& pool, absl::Span<const MemoryClaim> claims) {
  MemoryBudget budget = {.available = pool.available_bytes, .limit = pool.limit};
  const MemoryClaim& mine = claims[static_cast<size_t>(rank)];
  int64_t need = mine.to_come, caches = mine.cache_bytes, takers = mine.takes_rest ? 1 : 0;
  for (size_t r = 0; r < claims.size(); ++r) {
    if (static_cast<int>(r) == rank || pool.name.empty()) continue;
    const auto same = std::find_if(claims[r].pools.begin(), claims[r].pools.end(),
                                   [&pool](const MemoryPool& other) { return other.name == pool.name; });
    if (same == claims[r].pools.end()) continue;
    ++budget.workers;
    budget.others_need = Add(budget.others_need, claims[r].to_come);
    need = Add(need, claims[r].to_come);
    caches = Add(caches, claims[r].cache_bytes);
    takers += claims[r].takes_rest ? 1 : 0;
    // Ranks looked one after another.  The least of what they saw is the same number for all of them.
    if (same->available_bytes >= budget.available) continue;
    budget.available = same->available_bytes;
    budget.limit = same->limit;
  }
  budget.rest = std::max<int64_t>(0, budget.available - need) / std::max<int64_t>(1, takers);
  if (budget.workers > 1) {
    budget.cache_room = std::max<int64_t>(0, Add(budget.available, caches) - need) / budget.workers;
  }
  return budget;
}

}  // namespace

std::string EncodeClaim(const MemoryClaim& claim) {
  std::string text = absl::StrCat(claim.to_come, "\n", claim.cache_bytes, "\n", claim.takes_rest ? 1 : 0);
  for (const MemoryPool& pool : claim.pools) {
    absl::StrAppend(&text, "\n", pool.available_bytes, "\n", pool.name, "\n", pool.limit);
  }
  return text;
}

absl::StatusOr<MemoryClaim> DecodeClaim(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  MemoryClaim claim;
  int64_t takes_rest = 0;
  bool fits = lines.size() >= 6 && lines.size() % 3 == 0 && IsSize(lines[0], &claim.to_come) &&
              IsSize(lines[1], &claim.cache_bytes) && IsSize(lines[2], &takes_rest) && takes_rest <= 1;
  claim.takes_rest = takes_rest == 1;
  for (size_t i = 3; fits && i < lines.size(); i += 3) {
    MemoryPool& pool = claim.pools.emplace_back();
    fits = IsSize(lines[i], &pool.available_bytes);
    pool.name = lines[i + 1];
    pool.limit = lines[i + 2];
  }
  if (!fits) return absl::InvalidArgumentError("a rank's claim to memory is not three numbers, and three lines a pool");
  return claim;
}

std::string MemoryBudget::ToString() const {
  if (workers == 1) return absl::StrCat(": ", limit);
  return absl::StrCat(": ", limit, ", and ", workers, " workers share what is left, of which the other ", workers - 1,
                      workers == 2 ? " needs " : " need ", others_need,
                      " bytes; start fewer of them here, raise that limit, or give --expert_memory");
}

MemoryBudget ShareMemory(int rank, absl::Span<const MemoryClaim> claims) {
  const std::vector<MemoryPool>& mine = claims[static_cast<size_t>(rank)].pools;
  MemoryBudget budget = SharePool(rank, mine.front(), claims);
  int64_t cache_room = budget.cache_room, rest = budget.rest;
  for (const MemoryPool& pool : mine) {
    MemoryBudget each = SharePool(rank, pool, claims);
    cache_room = std::min(cache_room, each.cache_room);
    rest = std::min(rest, each.rest);
    if (each.own_bytes() < budget.own_bytes()) budget = std::move(each);
  }
  budget.cache_room = cache_room;
  budget.rest = rest;
  return budget;
}

absl::Status AwaitUnloaded(int rank, int world, comm::RendezvousStore* store, absl::Time deadline) {
  if (world == 1) return absl::OkStatus();
  return comm::ExchangeValues(store, "memory/unloaded", rank, world, "", deadline).status();
}

absl::StatusOr<MemoryBudget> AgreeOnMemory(int rank, int world, const MemoryClaim& mine, comm::RendezvousStore* store,
                                           absl::Time deadline) {
  std::vector<MemoryClaim> claims(static_cast<size_t>(world));
  claims[static_cast<size_t>(rank)] = mine;
  if (world > 1) {
    std::vector<std::string> values;
    ASSIGN_OR_RETURN(values, comm::ExchangeValues(store, "memory", rank, world, EncodeClaim(mine), deadline));
    for (size_t r = 0; r < claims.size(); ++r) {
      ASSIGN_OR_RETURN(claims[r], DecodeClaim(values[r]));
    }
  }
  return ShareMemory(rank, claims);
}

}  // namespace switchyard::worker
