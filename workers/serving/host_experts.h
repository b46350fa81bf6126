// Experts of workers that share a machine: one mapped expert file in memory, from which all of them compute where it
// lies.
//
// So several workers of a machine need no more memory for experts than one, any of them can compute any of these
// experts, and splitting rows between them costs no copy (scheduler/placement/route/host_split.h).  Workers share where
// the directory of the file is the same one, and it has the file or room for it; else each has its own part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/placement/route/host_split.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/model/forward/model.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/placement/host_balancer.h"
#include "workers/serving/rank_expert_file.h"
#include "workers/tensor/device.h"
#include "workers/tensor/machine_memory.h"

namespace switchyard::worker {

// The hosts that a group's ranks are of.
struct HostAgreement {
  placement::HostGroups groups;
  bool shares = false;  // this rank computes from a file
  // What it found of that, and its part of the file's bytes where it has to be built.
  moe::ExpertFile::Found file = {};
  int64_t claimed_bytes = 0;
  int lack_room = 0;        // ranks of this host, several, that do not share, as one of them finds no room for the file
  bool any_shares() const;  // two ranks have one host
};

// Equal where processes would find the same file, take their memory from the same pools, and want the same weights.
// The directory is made if it is missing.  Empty: it cannot be, or is not in memory.
std::string HostIdentity(const RankExpertFileInput& input, absl::Span<const MemoryPool> pools);

// Experts belong to ranks in equal parts, as without sharing.  identities [R]: HostIdentity, empty = does not share;
// equal ones are one host.
placement::HostGroups GroupsOf(int num_experts, absl::Span<const std::string> identities);

// Every rank of the group calls it, before it loads: publishes its identity, then whether it finds the file of its
// host's experts, or room.  A host shares if all of its ranks do, and they are several; a rank alone computes from a
// file that is there.  With world 1, it needs no store.  Errors: the store's.
using FindFileFn = absl::FunctionRef<moe::ExpertFile::Found(const std::vector<int32_t>& experts)>;
absl::StatusOr<HostAgreement> AgreeOnHosts(int rank, int world, int num_experts, const std::string& identity,
                                           FindFileFn find, comm::RendezvousStore* store, absl::Time deadline);

// The rows of an expert whose products take eight times as long as reading its weights (HostSplit's many_rows), timed
// with some experts that the model holds; some milliseconds.  REQUIRES: on the CPU, gated experts.
int32_t MeasureManyRows(const Stream& stream, const model::Model& model);

// A host's file, open.
class HostExperts {
 public:
  // The experts of this rank's host, rising.
  static std::vector<int32_t> ExpertsOf(int rank, const placement::HostGroups& groups);
  // Opens the file, building it if nobody has.  input: with these experts.  Blocks.  Errors: OpenRankExpertFile's.
  static absl::StatusOr<std::unique_ptr<HostExperts>> Open(const RankExpertFileInput& input,
                                                           moe::ExpertFile::Progress progress);
  ~HostExperts();

  // An expert's weights, packed.  REQUIRES: it is of this host.
  const char* At(int layer, int32_t expert) const;
  const moe::ExpertFile& file() const { return *file_; }

 private:
  HostExperts(std::vector<int32_t> experts, std::unique_ptr<moe::ExpertFile> file);
  void TakeHugePages();

  const std::vector<int32_t> experts_;
  const std::unique_ptr<const moe::ExpertFile> file_;
  absl::Notification stop_;
  std::thread huge_pages_;  // while experts are served
};

}  // namespace switchyard::worker
