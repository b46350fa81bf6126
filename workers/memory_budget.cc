#include "workers/memory_budget.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

// Claims come from elsewhere: sums of absurd ones stay at the most.
int64_t Add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

std::string KeyOf(int rank) { return absl::StrCat("memory/", rank); }

}  // namespace

MemoryClaim ClaimOf(const MachineMemory& memory) {
  return {.domain = memory.domain, .available = memory.available_bytes, .limit = memory.limit};
}

std::string EncodeClaim(const MemoryClaim& claim) {
  return absl::StrCat(claim.available, "\n", claim.to_come, "\n", claim.cache_bytes, "\n", claim.domain, "\n",
                      claim.limit);
}

absl::StatusOr<MemoryClaim> DecodeClaim(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 4));
  MemoryClaim claim;
  const std::array<int64_t*, 3> numbers = {&claim.available, &claim.to_come, &claim.cache_bytes};
  bool fits = lines.size() == 5;
  for (size_t i = 0; fits && i < numbers.size(); ++i) fits = absl::SimpleAtoi(lines[i], numbers[i]) && *numbers[i] >= 0;
  if (!fits) return absl::InvalidArgumentError("a rank's claim to memory is not three numbers and two texts");
  claim.domain = lines[3];
  claim.limit = lines[4];
  return claim;
}

std::string MemoryBudget::ToString() const {
  if (workers == 1) return absl::StrCat(": ", limit);
  return absl::StrCat(": ", limit, ", and ", workers, " workers share what is left, of which the other ", workers - 1,
                      workers == 2 ? " needs " : " need ", others_need,
                      " bytes; start fewer of them here, raise that limit, or give --expert_budget");
}

MemoryBudget ShareMemory(int rank, absl::Span<const MemoryClaim> claims) {
  const MemoryClaim& mine = claims[static_cast<size_t>(rank)];
  MemoryBudget budget = {.available = mine.available, .limit = mine.limit};
  int64_t need = mine.to_come, caches = mine.cache_bytes;
  for (size_t r = 0; r < claims.size(); ++r) {
    const MemoryClaim& each = claims[r];
    if (static_cast<int>(r) == rank || mine.domain.empty() || each.domain != mine.domain) continue;
    ++budget.workers;
    budget.others_need = Add(budget.others_need, each.to_come);
    need = Add(need, each.to_come);
    caches = Add(caches, each.cache_bytes);
    // They looked one after another; the least is the same for all of them.
    if (each.available >= budget.available) continue;
    budget.available = each.available;
    budget.limit = each.limit;
  }
  budget.room_for_caches = std::max<int64_t>(0, Add(budget.available, caches) - need);
  return budget;
}

absl::StatusOr<MemoryBudget> AgreeOnMemory(int rank, int world, const MemoryClaim& mine, RendezvousStore* store,
                                           absl::Time deadline) {
  std::vector<MemoryClaim> claims(static_cast<size_t>(world));
  claims[static_cast<size_t>(rank)] = mine;
  if (world > 1) {
    RETURN_IF_ERROR(store->Set(KeyOf(rank), EncodeClaim(mine)));
    std::vector<std::string> keys, values;
    for (int r = 0; r < world; ++r) keys.push_back(KeyOf(r));
    ASSIGN_OR_RETURN(values, store->Get(keys, deadline));
    for (size_t r = 0; r < claims.size(); ++r) {
      ASSIGN_OR_RETURN(claims[r], DecodeClaim(values[r]));
    }
  }
  return ShareMemory(rank, claims);
}

}  // namespace switchyard
