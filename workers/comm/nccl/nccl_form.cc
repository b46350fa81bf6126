#include "workers/comm/nccl/nccl_form.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/nccl/nccl_handle.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::comm {
namespace {

constexpr char kAlgorithm[] = "NCCL_ALGO";
constexpr char kProtocol[] = "NCCL_PROTO";
constexpr char kFailed[] = "failed: ";  // in place of an id

// A rank's settings and device.  Plain bytes on the wire.
struct RankCard {
  int32_t nccl_version;
  int32_t deterministic;
  char boot[40];    // differs between machines
  char bus_id[24];  // of its device
};

template <size_t kBytes>
void CopyText(const std::string& from, char (&to)[kBytes]) {
  std::memset(to, 0, kBytes);
  std::memcpy(to, from.data(), std::min(from.size(), kBytes - 1));
}

absl::StatusOr<RankCard> CardOf(const NcclGroupOptions& options) {
  RankCard card = {};
  if (const ncclResult_t result = ncclGetVersion(&card.nccl_version); result != ncclSuccess) {
    return absl::UnavailableError(absl::StrCat("ncclGetVersion: ", ncclGetErrorString(result)));
  }
  card.deterministic = options.deterministic ? 1 : 0;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  CopyText(boot, card.boot);
  SY_RETURN_IF_CUDA_ERROR(cudaDeviceGetPCIBusId(card.bus_id, sizeof(card.bus_id), options.device));
  return card;
}

// 21805 = 2.18.5
std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status Compare(const RankCard& a, int rank_a, const RankCard& b, int rank_b, bool allow_shared_device) {
  if (a.nccl_version != b.nccl_version) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank_a, " has NCCL ", VersionText(a.nccl_version),
                                                      ", rank ", rank_b, " ", VersionText(b.nccl_version)));
  }
  if (a.deterministic != b.deterministic) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", a.deterministic != 0 ? rank_a : rank_b,
                                                      " is deterministic, rank ",
                                                      a.deterministic != 0 ? rank_b : rank_a, " is not"));
  }
  if (!allow_shared_device && std::strcmp(a.boot, b.boot) == 0 && std::strcmp(a.bus_id, b.bus_id) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", rank_a, " and ", rank_b, " are on one device, ", a.bus_id, "; NCCL wants one each"));
  }
  return absl::OkStatus();
}

// (If rank 0 cannot make one, it ends the group, and so the others' wait.)
absl::StatusOr<std::string> SendNcclId(Communicator* messages, absl::Time deadline) {
  std::string id;
  if (messages->rank() == 0) {
    ASSIGN_OR_RETURN(id, NcclHandle::NewId());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                   messages->Broadcast({.comm_class = CommClass::kControl, .deadline = deadline}, 0,
                                       NcclHandle::kIdBytes, absl::MakeConstSpan(id.data(), id.size())));
  RETURN_IF_ERROR(work->Wait());
  const absl::Span<const char> text = work->received()[0].span();
  return std::string(text.data(), text.size());
}

}  // namespace

void FixNcclReductions() {
  setenv(kAlgorithm, "Ring", /*overwrite=*/0);
  setenv(kProtocol, "Simple", /*overwrite=*/0);
}

absl::Status CheckNcclOptions(const NcclGroupOptions& options, const NcclHostGroups& host) {
  if (host.messages == nullptr) return absl::InvalidArgumentError("an NCCL group needs a host group for messages");
  const GroupId& group = host.messages->group();
  if (group.world > 1 && options.deadline == absl::InfiniteFuture()) {
    return absl::InvalidArgumentError("forming a group needs a deadline");
  }
  if (group.world > 1 && (host.watch == nullptr || host.watch->rank() != group.rank ||
                          host.watch->world() != group.world || host.watch->group().epoch != group.epoch)) {
    return absl::InvalidArgumentError("an NCCL group needs a second host group, of the same ranks and epoch, to watch");
  }
  int num_devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&num_devices);
  if (options.device < 0 || counted != cudaSuccess || options.device >= num_devices) {
    return absl::InvalidArgumentError(absl::StrCat("no device cuda:", options.device, " among ", num_devices));
  }
  if (options.deterministic && (std::getenv(kAlgorithm) == nullptr || std::getenv(kProtocol) == nullptr)) {
    return absl::FailedPreconditionError(absl::StrCat("a deterministic NCCL group: ", kAlgorithm, " and ", kProtocol,
                                                      " are not set (FixNcclReductions at the program's start)"));
  }
  return absl::OkStatus();
}

absl::Status CompareRanks(const NcclGroupOptions& options, Communicator* messages) {
  ASSIGN_OR_RETURN(const RankCard mine, CardOf(options));
  if (messages->world() == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::unique_ptr<Work> work,
                   messages->AllGather({.comm_class = CommClass::kControl, .deadline = options.deadline},
                                       absl::MakeConstSpan(reinterpret_cast<const char*>(&mine), sizeof(mine))));
  RETURN_IF_ERROR(work->Wait());
  std::vector<RankCard> cards(messages->world());
  for (int r = 0; r < messages->world(); ++r) {
    std::memcpy(&cards[r], work->received()[r].payload(), sizeof(RankCard));
    cards[r].boot[sizeof(cards[r].boot) - 1] = cards[r].bus_id[sizeof(cards[r].bus_id) - 1] = '\0';
  }
  for (int a = 0; a < messages->world(); ++a) {
    for (int b = a + 1; b < messages->world(); ++b) {
      RETURN_IF_ERROR(Compare(cards[a], a, cards[b], b, options.allow_shared_device));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ShareNcclId(const NcclGroupOptions& options, Communicator* messages,
                                        RendezvousStore* store) {
  const GroupId& group = messages->group();
  if (group.world == 1) return NcclHandle::NewId();
  if (store == nullptr) return SendNcclId(messages, options.deadline);
  const std::string key = absl::StrCat("group/", group.epoch, "/", absl::Hex(group.token), "/nccl_id");
  if (group.rank == 0) {
    const absl::StatusOr<std::string> id = NcclHandle::NewId();
    RETURN_IF_ERROR(store->Set(key, id.ok() ? *id : absl::StrCat(kFailed, std::string(id.status().message()))));
    return id;
  }
  const absl::StatusOr<std::vector<std::string>> found = store->Get({key}, options.deadline);
  if (absl::IsDeadlineExceeded(found.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank 0 did not share NCCL's id in time: ", std::string(found.status().message())));
  }
  RETURN_IF_ERROR(found.status());
  absl::string_view id = found->front();
  if (absl::ConsumePrefix(&id, kFailed)) {
    return absl::UnavailableError(absl::StrCat("rank 0 could not make NCCL's id: ", std::string(id)));
  }
  return std::string(id);
}

}  // namespace switchyard::comm
