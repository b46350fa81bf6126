// Experts of workers that share a machine: one mapped expert file, from which all of them compute where it lies.
//
// So several workers of a machine need no more memory for experts than one, any of them can compute any of these
// experts, and splitting rows between them costs no copy (scheduler/placement/route/host_split.h).  Workers share where
// the directory of the file is the same one, and it has the file or room for it; else each has its own part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduler/placement/route/host_split.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/model/forward/model.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/placement/host_balancer.h"
#include "workers/serving/rank_expert_file.h"
#include "workers/tensor/device.h"

namespace switchyard::worker {

// The hosts that a group's ranks are of.
struct HostAgreement {
  placement::HostGroups groups;
  // Whether this rank computes from a file, and whether that is there already, or has to be built.
  bool shares = false, is_there = false;
  bool any_shares() const;  // two ranks have one host

  bool operator==(const HostAgreement& other) const {
    return groups.host_of == other.groups.host_of && shares == other.shares;
  }
};

// Equal where processes would find the same file: of one machine's directory, which is made if it is missing, for the
// same weights.  Empty: it cannot be.
std::string HostIdentity(const RankExpertFileInput& input);

// Experts belong to ranks in equal parts, as without sharing.  identities [R]: HostIdentity, empty = does not share;
// equal ones are one host.
placement::HostGroups GroupsOf(int num_experts, absl::Span<const std::string> identities);

// Every rank of the group calls it, before it loads: publishes its directory, then, asked by `presence` for its host's
// experts, whether it finds the file.  A host shares if all of its ranks do, and they are several; a rank alone
// computes from a file that is there.  With world 1, it needs no store.  Errors: the store's.
absl::StatusOr<HostAgreement> AgreeOnHosts(
    int rank, int world, int num_experts, const std::string& identity,
    absl::FunctionRef<moe::ExpertFile::Presence(const std::vector<int32_t>& experts)> presence,
    comm::RendezvousStore* store, absl::Time deadline);

// The rows of an expert from which their products take longer than reading its weights (HostSplit's many_rows), timed
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

  // An expert's weights, packed.  REQUIRES: it is of this host.
  const char* At(int layer, int32_t expert) const;
  const moe::ExpertFile& file() const { return *file_; }

 private:
  HostExperts(std::vector<int32_t> experts, std::unique_ptr<moe::ExpertFile> file)
      : experts_(std::move(experts)), file_(std::move(file)) {}

  const std::vector<int32_t> experts_;
  const std::unique_ptr<const moe::ExpertFile> file_;
};

}  // namespace switchyard::worker
