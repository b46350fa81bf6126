#include "workers/comm/group/late_ranks.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace switchyard::comm {
namespace {

// Both sides' sizes, if they differ.
std::string SizesThatDiffer(const PeerReport& mine, int rank, const PeerReport& theirs, int peer) {
  if (mine.send_bytes.empty() || theirs.send_bytes.empty()) return "";
  std::string text;
  if (mine.send_bytes[peer] != theirs.recv_bytes[rank]) {
    absl::StrAppend(&text, "rank ", rank, " sends rank ", peer, " ", mine.send_bytes[peer], " bytes, which expects ",
                    theirs.recv_bytes[rank]);
  }
  if (theirs.send_bytes[rank] != mine.recv_bytes[peer]) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", peer, " sends rank ", rank, " ", theirs.send_bytes[rank],
                    " bytes, which expects ", mine.recv_bytes[peer]);
  }
  return text;
}

// What one peer is doing, and whether that explains the wait.
std::pair<bool, std::string> Verdict(const PeerReport& mine, int rank, const PeerReport& theirs, int peer) {
  const int64_t launch = mine.completed;  // of the pending one
  if (theirs.completed > launch) return {false, absl::StrCat("rank ", peer, " has finished it")};
  if (theirs.launched <= launch) {
    return {true,
            absl::StrCat("rank ", peer, " has not launched it (", theirs.launched, " launched",
                         theirs.launched == 0 ? "" : absl::StrCat(", the last was ", theirs.last.ToString()), ")")};
  }
  if (theirs.completed < launch) {
    return {true, absl::StrCat("rank ", peer, " is still in ", theirs.pending.ToString(), ", ",
                               launch - theirs.completed, " before it")};
  }
  if (theirs.pending != mine.pending) {
    return {true, absl::StrCat("rank ", peer, " launched ", theirs.pending.ToString(), " instead")};
  }
  const std::string sizes = SizesThatDiffer(mine, rank, theirs, peer);
  if (!sizes.empty()) return {true, sizes};
  return {false, absl::StrCat("rank ", peer, " waits for it, too")};
}

}  // namespace

std::string WhoIsLate(absl::Span<const PeerReport> reports, int rank) {
  std::vector<std::string> at_fault, others;
  for (int peer = 0; peer < static_cast<int>(reports.size()); ++peer) {
    if (peer == rank) continue;
    auto [explains, text] = Verdict(reports[rank], rank, reports[peer], peer);
    (explains ? at_fault : others).push_back(std::move(text));
  }
  if (at_fault.empty()) at_fault.push_back("every rank has launched it; a device or a link does not get on");
  at_fault.insert(at_fault.end(), others.begin(), others.end());
  return absl::StrJoin(at_fault, "; ");
}

}  // namespace switchyard::comm
