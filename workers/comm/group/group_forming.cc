#include "workers/comm/group/group_forming.h"

#include <arpa/inet.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/group/group_secret.h"

namespace switchyard::comm {
namespace {

constexpr int kMaxWorld = 1024;

}  // namespace

absl::Status CheckGroupOptions(const GroupOptions& options) {
  if (options.world < 1 || options.world > kMaxWorld || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.world, ": wants 0 <= rank < world <= ", kMaxWorld));
  }
  if (options.world == 1) return absl::OkStatus();
  if (options.deadline == absl::InfiniteFuture()) return absl::InvalidArgumentError("forming a group needs a deadline");
  return CheckGroupAddress(options.address);
}

absl::Status CheckGroupAddress(const std::string& address) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, address.c_str(), &v4) == 1) {
    const uint32_t ip = ntohl(v4.s_addr);
    const bool is_private = ip >> 24 == 127 || ip >> 24 == 10 || ip >> 20 == 0xac1 || ip >> 16 == 0xc0a8;
    const bool is_shared = ip >> 22 == 0x191;  // 100.64/10 (RFC 6598), which some clouds give to pods
    if (is_private || is_shared) return absl::OkStatus();
  } else if (inet_pton(AF_INET6, address.c_str(), &v6) == 1) {
    if (IN6_IS_ADDR_LOOPBACK(&v6) || (v6.s6_addr[0] & 0xfe) == 0xfc) return absl::OkStatus();
  } else {
    return absl::InvalidArgumentError(absl::StrCat("group address \"", address, "\" is not an IP address"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("group address ", address,
                   " is neither loopback nor private: workers' ports are for their own network; give an address of a",
                   " private interface (10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7)"));
}

GroupId IdOfGroup(const GroupOptions& options) {
  return {.epoch = options.epoch, .token = GroupTag(options.token), .rank = options.rank, .world = options.world};
}

std::string GroupPrefix(const GroupOptions& options) {
  return absl::StrCat("group/", options.epoch, "/", absl::Hex(GroupTag(options.token)), "/");
}

absl::Status CallTheRoll(const GroupOptions& options, RendezvousStore* store) {
  const std::string prefix = GroupPrefix(options);
  const auto key_of = [&](int rank) { return absl::StrCat(prefix, "member/", rank); };
  const absl::Status set = store->Set(key_of(options.rank), absl::StrCat(options.world));
  if (absl::IsAlreadyExists(set)) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", options.rank, " of epoch ", options.epoch,
                                                 " is taken: another process joined as the same rank"));
  }
  RETURN_IF_ERROR(set);
  for (int rank = 0; rank < options.world; ++rank) {
    const absl::StatusOr<std::vector<std::string>> answer = store->Get({key_of(rank)}, options.deadline);
    if (absl::IsDeadlineExceeded(answer.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", rank, " of ", options.world, " did not join epoch ", options.epoch, " in time"));
    }
    RETURN_IF_ERROR(answer.status());
    int world = 0;
    if (!absl::SimpleAtoi(answer->front(), &world) || world != options.world) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " joined a world of ", answer->front(),
                                                        ", rank ", options.rank, " a world of ", options.world));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::comm
