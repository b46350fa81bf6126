#include "workers/serving/host_experts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/expert_ffn.h"

namespace switchyard::worker {
namespace {

constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
constexpr char kYes[] = "there", kRoom[] = "room", kNo[] = "no";

}  // namespace

bool HostAgreement::any_shares() const {
  const std::vector<int32_t>& hosts = groups.host_of;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != static_cast<int32_t>(rank)) return true;  // a host has the number of its first rank
  }
  return false;
}

// By the machine's boot, the file system and the directory, as containers may see one by several names.
std::string HostIdentity(const RankExpertFileInput& input) {
  const std::string dir = input.dir.empty() ? "/dev/shm" : input.dir;
  std::error_code made;
  if (std::filesystem::create_directories(dir, made)) chmod(dir.c_str(), 0700);
  std::ifstream boot(kBootId);
  std::string id;
  struct stat status = {};
  if (!(boot >> id) || stat(dir.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return "";
  return absl::StrCat(id, " ", status.st_dev, " ", status.st_ino, " ", geteuid(), " ", DTypeName(input.dtype), " ",
                      input.weights);
}

placement::HostGroups GroupsOf(int num_experts, absl::Span<const std::string> identities) {
  placement::HostGroups groups;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    const size_t first = identities[rank].empty()
                             ? rank
                             : static_cast<size_t>(std::find(identities.begin(), identities.end(), identities[rank]) -
                                                   identities.begin());
    groups.host_of.push_back(static_cast<int32_t>(first));
  }
  const moe::ExpertLayout own =
      moe::ExpertLayout::Contiguous(std::max(num_experts, 1), static_cast<int>(identities.size()));
  for (int expert = 0; expert < num_experts; ++expert) groups.owner_of.push_back(own.Places(expert)[0].rank);
  return groups;
}

absl::StatusOr<HostAgreement> AgreeOnHosts(
    int rank, int world, int num_experts, const std::string& identity,
    absl::FunctionRef<moe::ExpertFile::Presence(const std::vector<int32_t>& experts)> presence,
    comm::RendezvousStore* store, absl::Time deadline) {
  std::vector<std::string> identities = {identity};
  if (world > 1) {
    ASSIGN_OR_RETURN(identities, comm::ExchangeValues(store, "hosts", rank, world, identity, deadline));
  }
  HostAgreement agreed = {.groups = GroupsOf(num_experts, identities)};
  std::string answer = kNo;
  if (const std::vector<int32_t> experts = HostExperts::ExpertsOf(rank, agreed.groups);
      !identity.empty() && !experts.empty()) {
    const moe::ExpertFile::Presence found = presence(experts);
    if (found != moe::ExpertFile::Presence::kNoRoom) answer = found == moe::ExpertFile::Presence::kThere ? kYes : kRoom;
  }
  std::vector<std::string> answers = {answer};
  if (world > 1) {
    ASSIGN_OR_RETURN(answers, comm::ExchangeValues(store, "host_files", rank, world, answer, deadline));
  }
  // By host, whose number is that of its first rank.
  std::vector<int> ranks(identities.size()), willing(identities.size()), finders(identities.size());
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto host = static_cast<size_t>(agreed.groups.host_of[r]);
    ++ranks[host];
    if (answers[r] == kYes || answers[r] == kRoom) ++willing[host];
    if (answers[r] == kYes) ++finders[host];
  }
  const auto own = static_cast<size_t>(agreed.groups.host_of[static_cast<size_t>(rank)]);
  const bool has_experts = num_experts > 0;
  agreed.is_there = has_experts && finders[own] > 0;
  agreed.shares = has_experts && willing[own] == ranks[own] && (ranks[own] > 1 || agreed.is_there);
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto host = static_cast<size_t>(agreed.groups.host_of[r]);
    if (willing[host] != ranks[host]) agreed.groups.host_of[r] = static_cast<int32_t>(r);
  }
  return agreed;
}

int32_t MeasureManyRows(const Stream& stream, const model::Model& model) {
  constexpr int64_t kRows = 128, kTimed = 7;
  const model::ModelConfig& config = model.config();
  std::vector<const ops::Weight*> weights;
  for (const model::LayerWeights& layer : model.weights().layers) {
    if (!layer.moe.has_value()) continue;
    for (const model::FfnWeights& expert : layer.moe->experts) weights.push_back(&expert.gate_up);
  }
  if (weights.empty()) return 1;
  const Tensor x(model.dtype(), {kRows, config.hidden}), y(model.dtype(), {kRows, config.expert_intermediate});
  std::memset(x.view().raw(), 0, static_cast<size_t>(x.bytes()));
  size_t next = 0;
  // Of an expert that the caches are unlikely to have.
  const auto median_of = [&](int64_t rows) {
    std::vector<absl::Duration> took;
    for (int64_t i = 0; i < kTimed; ++i) {
      next = (next + weights.size() / (2 * kTimed) + 1) % weights.size();
      const absl::Time begin = absl::Now();
      const absl::Status status =
          ops::GatedGemm(stream, x.view().Rows(0, rows), *weights[next], y.view().Rows(0, rows));
      took.push_back(status.ok() ? absl::Now() - begin : absl::InfiniteDuration());
    }
    std::nth_element(took.begin(), took.begin() + kTimed / 2, took.end());
    return absl::ToDoubleSeconds(took[kTimed / 2]);
  };
  median_of(1);
  const double one = median_of(1), many = median_of(kRows);
  if (!(many > 0) || !(one < many)) return static_cast<int32_t>(kRows);
  return std::clamp(static_cast<int32_t>(std::ceil(one / many * kRows)), 1, static_cast<int32_t>(kRows));
}

std::vector<int32_t> HostExperts::ExpertsOf(int rank, const placement::HostGroups& groups) {
  std::vector<int32_t> experts;
  for (int32_t expert = 0; expert < groups.num_experts(); ++expert) {
    if (groups.HostOf(expert) == groups.host_of[static_cast<size_t>(rank)]) experts.push_back(expert);
  }
  return experts;
}

absl::StatusOr<std::unique_ptr<HostExperts>> HostExperts::Open(const RankExpertFileInput& input,
                                                               moe::ExpertFile::Progress progress) {
  ASSIGN_OR_RETURN(std::unique_ptr<moe::ExpertFile> file, OpenRankExpertFile(input, progress));
  LogInfo("experts: ", input.experts.size(), " of each layer in place, from ", file->path(), ", ", Mib(file->bytes()),
          file->built() ? " (built now)" : "");
  return std::unique_ptr<HostExperts>(new HostExperts(input.experts, std::move(file)));
}

const char* HostExperts::At(int layer, int32_t expert) const {
  const auto at = std::lower_bound(experts_.begin(), experts_.end(), expert);
  SY_CHECK(at != experts_.end() && *at == expert);
  return file_->At(layer, static_cast<int>(at - experts_.begin()));
}

}  // namespace switchyard::worker
