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
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/memory_share.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/expert_ffn.h"

namespace switchyard::worker {
namespace {

constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
constexpr char kFile[] = "file", kRoom[] = "room", kNeither[] = "neither";

}  // namespace

bool HostAgreement::any_shares() const {
  const std::vector<int32_t>& hosts = groups.host_of;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != static_cast<int32_t>(rank)) return true;  // a host has the number of its first rank
  }
  return false;
}

// By the machine's boot, the file system and the directory, as containers may see one by several names.
std::string HostIdentity(const RankExpertFileInput& input, absl::Span<const MemoryPool> pools) {
  const std::string dir = input.dir.empty() ? "/dev/shm" : input.dir;
  std::error_code made;
  if (std::filesystem::create_directories(dir, made)) chmod(dir.c_str(), 0700);
  std::ifstream boot(kBootId);
  std::string id;
  struct stat status = {};
  if (!(boot >> id) || stat(dir.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || !IsInMemory(dir)) return "";
  absl::StrAppend(&id, " ", status.st_dev, " ", status.st_ino, " ", geteuid(), " ", DTypeName(input.dtype), " ",
                  input.weights);
  for (const MemoryPool& pool : pools) absl::StrAppend(&id, " ", pool.name);
  return id;
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

absl::StatusOr<HostAgreement> AgreeOnHosts(int rank, int world, int num_experts, const std::string& identity,
                                           FindFileFn find, comm::RendezvousStore* store, absl::Time deadline) {
  using What = moe::ExpertFile::Found::What;
  std::vector<std::string> identities = {identity};
  if (world > 1) {
    ASSIGN_OR_RETURN(identities, comm::ExchangeValues(store, "hosts", rank, world, identity, deadline));
  }
  HostAgreement agreed = {.groups = GroupsOf(num_experts, identities)};
  const std::vector<int32_t> experts = HostExperts::ExpertsOf(rank, agreed.groups);
  if (!identity.empty() && !experts.empty()) agreed.file = find(experts);
  const What what = agreed.file.what;
  std::vector<std::string> answers = {what == What::kFile ? kFile : what == What::kRoom ? kRoom : kNeither};
  if (world > 1) {
    const std::string mine = answers[0];
    ASSIGN_OR_RETURN(answers, comm::ExchangeValues(store, "host_files", rank, world, mine, deadline));
  }
  // By host, whose number is that of its first rank.
  std::vector<int> ranks(identities.size()), willing(identities.size());
  bool is_there = false;
  for (size_t r = 0; r < identities.size(); ++r) {
    const int32_t host = agreed.groups.host_of[r];
    ++ranks[static_cast<size_t>(host)];
    if (answers[r] == kFile || answers[r] == kRoom) ++willing[static_cast<size_t>(host)];
    is_there |= answers[r] == kFile && host == agreed.groups.host_of[static_cast<size_t>(rank)];
  }
  const auto own = static_cast<size_t>(agreed.groups.host_of[static_cast<size_t>(rank)]);
  agreed.shares = num_experts > 0 && willing[own] == ranks[own] && (ranks[own] > 1 || is_there);
  if (!identity.empty() && num_experts > 0 && ranks[own] > 1 && !agreed.shares) agreed.lack_room = ranks[own];
  if (agreed.shares && !is_there) agreed.claimed_bytes = (agreed.file.bytes + ranks[own] - 1) / ranks[own];
  if (!agreed.shares) agreed.file.lock = UniqueFd();
  for (size_t r = 0; r < identities.size(); ++r) {
    const auto host = static_cast<size_t>(agreed.groups.host_of[r]);
    if (willing[host] != ranks[host]) agreed.groups.host_of[r] = static_cast<int32_t>(r);
  }
  return agreed;
}

int32_t MeasureManyRows(const Stream& stream, const model::Model& model) {
  constexpr int64_t kRows = 128, kTimed = 7;
  constexpr double kReadings = 8, kMostRows = 4096;
  const model::ModelConfig& config = model.config();
  std::vector<const ops::Weight*> weights;
  for (const model::LayerWeights& layer : model.weights().layers) {
    if (!layer.moe.has_value()) continue;
    for (const model::FfnWeights& expert : layer.moe->experts) weights.push_back(&expert.gate_up);
  }
  if (weights.empty()) return 1;
  const Tensor x(model.dtype(), {kRows, config.hidden}), y(model.dtype(), {kRows, config.expert_intermediate});
  std::memset(x.view().raw(), 0, static_cast<size_t>(x.bytes()));
  // Of experts that the caches are unlikely to have; but their pages are mapped.
  size_t next = 0;
  const auto step = [&] { return next = (next + weights.size() / (2 * kTimed) + 1) % weights.size(); };
  for (int64_t i = 0; i < 2 * kTimed; ++i) {
    const auto* const bytes = static_cast<const volatile char*>(weights[step()]->data());
    for (int64_t at = 0; at < weights[next]->bytes(); at += 4096) static_cast<void>(bytes[at]);
  }
  next = 0;
  const auto median_of = [&](int64_t rows) {
    std::vector<absl::Duration> took;
    for (int64_t i = 0; i < kTimed; ++i) {
      step();
      const absl::Time begin = absl::Now();
      const absl::Status status =
          ops::GatedGemm(stream, x.view().Rows(0, rows), *weights[next], y.view().Rows(0, rows));
      took.push_back(status.ok() ? absl::Now() - begin : absl::InfiniteDuration());
    }
    std::nth_element(took.begin(), took.begin() + kTimed / 2, took.end());
    return absl::ToDoubleSeconds(took[kTimed / 2]);
  };
  const double one = median_of(1), all = median_of(kRows);
  const double row = (all - one) / (kRows - 1), reading = std::max(0., one - row);
  const double rows = row > 0 ? std::clamp(std::ceil(kReadings * reading / row), 1., kMostRows) : kMostRows;
  LogInfo("experts: rows of one are many, so that they stay where they are, from ", rows, " on");
  return static_cast<int32_t>(rows);
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

HostExperts::HostExperts(std::vector<int32_t> experts, std::unique_ptr<moe::ExpertFile> file)
    : experts_(std::move(experts)), file_(std::move(file)) {
  if (file_->built()) huge_pages_ = std::thread([this] { TakeHugePages(); });
}

HostExperts::~HostExperts() {
  stop_.Notify();
  if (huge_pages_.joinable()) huge_pages_.join();
}

// Takes a fifth of a core at most, as the kernel copies each page.
void HostExperts::TakeHugePages() {
  constexpr int kRest = 4;
  for (int64_t part = 0; part < file_->num_huge_parts(); ++part) {
    const absl::Time begin = absl::Now();
    if (!file_->TakeHugePage(part) || stop_.WaitForNotificationWithTimeout(kRest * (absl::Now() - begin))) return;
  }
}

const char* HostExperts::At(int layer, int32_t expert) const {
  const auto at = std::lower_bound(experts_.begin(), experts_.end(), expert);
  SY_CHECK(at != experts_.end() && *at == expert);
  return file_->At(layer, static_cast<int>(at - experts_.begin()));
}

}  // namespace switchyard::worker
