#include "workers/serving/rank_expert_file.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/dummy_weights.h"
#include "workers/model/weights/loader.h"
#include "workers/moe/experts/device_expert_copier.h"
#include "workers/moe/experts/direct_reader.h"
#include "workers/moe/experts/disk_expert_copier.h"
#include "workers/tensor/tensor.h"

namespace switchyard::worker {
namespace {

// Over a device's link a chunk costs a wait; from a disk several are under way, and what is wanted next waits for them.
constexpr int64_t kMostPieceBytes = 2 << 20, kMostPieceBytesOnDisk = 1 << 20;
constexpr int64_t kMeasuredBytes = 128 << 20;
constexpr absl::Duration kMeasuredTime = absl::Milliseconds(500);

int64_t PieceBytes(int64_t expert_bytes, bool on_disk) {
  const int64_t part = (expert_bytes / kChunksPerCopy + moe::kDirectAlignment - 1) / moe::kDirectAlignment;
  return std::clamp(part * moe::kDirectAlignment, moe::kDirectAlignment,
                    on_disk ? kMostPieceBytesOnDisk : kMostPieceBytes);
}

absl::StatusOr<std::string> DirOf(const RankExpertFileInput& input) {
  if (!input.dir.empty()) return input.dir;
  if (input.staging_bytes == 0) return "/dev/shm";
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return absl::StrCat(cache, "/switchyard/experts");
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home == '/')
    return absl::StrCat(home, "/.cache/switchyard/experts");
  return absl::InvalidArgumentError(
      "--expert_file_dir: name a directory on a disk, as there is neither HOME nor XDG_CACHE_HOME here");
}

}  // namespace

absl::StatusOr<std::unique_ptr<moe::ExpertCopier>> CopierFrom(const moe::ExpertFile& file, Device device) {
  if (!file.mapped()) {
    // Without its path: clients get the errors.
    ASSIGN_OR_RETURN(std::unique_ptr<moe::DirectReader> reader,
                     moe::DirectReader::Open(file.fd(), "expert file", moe::DiskExpertCopier::kDepth));
    LogInfo("experts: read by ", reader->method(), reader->past_page_cache() ? "" : ", through the page cache");
    return std::make_unique<moe::DiskExpertCopier>(
        std::move(reader), [&file](const moe::ExpertId& id) { return file.OffsetOf(id.layer, id.expert); });
  }
  return moe::MakeExpertCopier(device, {.begin = file.data(), .bytes = file.bytes()});
}

absl::StatusOr<double> MeasureCopyRate(const moe::ExpertFile& file, const moe::ExpertForms& forms,
                                       moe::ExpertCopier* copier) {
  const int64_t piece = file.piece_bytes(), pieces = (forms.bytes() + piece - 1) / piece;
  const int64_t all = int64_t{file.num_layers()} * file.num_experts() * pieces;
  const int64_t count = std::clamp<int64_t>(kMeasuredBytes / piece, 1, all);
  PinnedBuffer memory;
  ASSIGN_OR_RETURN(memory, PinnedBuffer::Allocate(copier->depth() * piece + moe::kDirectAlignment, DeviceKind::kCpu));
  char* const to = memory.data() + moe::kDirectAlignment -
                   static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.data()) % moe::kDirectAlignment);
  const absl::Time begun = MonotonicNow();
  int64_t started = 0, over = 0, bytes = 0;
  std::vector<int> free(static_cast<size_t>(copier->depth()));
  std::iota(free.begin(), free.end(), 0);
  absl::Status status;
  while (started > over || over == 0) {
    if (started < count && !free.empty() && (started == 0 || MonotonicNow() - begun < kMeasuredTime)) {
      const int64_t at = started++ * (all / count), place = at / pieces;
      const moe::ExpertId id = {.layer = static_cast<int32_t>(place / file.num_experts()),
                                .expert = static_cast<int32_t>(place % file.num_experts())};
      // (A smaller expert than the largest may have fewer pieces.)
      const int64_t expert_bytes = forms.of(id.layer).bytes, last = (expert_bytes - 1) / piece * piece;
      const int64_t offset = std::min(at % pieces * piece, last);
      copier->Start({.id = id,
                     .slot = free.back(),
                     .offset = offset,
                     .bytes = std::min(piece, expert_bytes - offset),
                     .to = to + free.back() * piece});
      free.pop_back();
      continue;
    }
    const moe::ExpertCopier::Finished finished = copier->Await();
    status.Update(finished.status);
    free.push_back(finished.chunk.slot);
    bytes += finished.chunk.bytes;
    ++over;
  }
  RETURN_IF_ERROR(status);
  return static_cast<double>(bytes) / std::max(1e-6, absl::ToDoubleSeconds(MonotonicNow() - begun));
}

absl::Status LoadExpertsOf(const RankExpertFileInput& input, std::vector<int32_t> experts,
                           moe::ExpertFile::Progress progress, std::function<char*(int layer, int32_t expert)> place) {
  model::LoadOptions load;
  load.dtype = input.type.dtype;
  load.format = input.type.format;
  load.device = input.device;
  load.residents = std::move(experts);
  load.adapter = input.adapter;
  load.num_threads = input.num_threads;
  load.progress = [&](int64_t done, int64_t total) { return progress(done, total); };
  if (input.checkpoint == nullptr) return model::MakeDummyExperts(*input.config, std::move(load), std::move(place));
  return model::LoadExperts(*input.checkpoint, *input.config, std::move(load), std::move(place));
}

absl::StatusOr<std::unique_ptr<moe::ExpertFile>> OpenRankExpertFile(const RankExpertFileInput& input,
                                                                    moe::ExpertFile::Progress progress) {
  const model::ModelConfig& config = *input.config;
  RETURN_IF_ERROR(model::CheckStorable(config));
  moe::ExpertFileOptions options;
  ASSIGN_OR_RETURN(options.dir, DirOf(input));
  options.weights = input.weights;
  options.expert = model::ExpertFormsOf(config, input.type, input.device.kind);
  options.device = input.device.kind;
  options.num_layers = static_cast<int>(config.num_moe_layers());
  options.num_experts = static_cast<int>(config.num_experts);
  options.available_bytes = input.available_bytes;
  options.on_disk = input.staging_bytes > 0 && input.device.is_cpu() && !IsInMemory(options.dir);
  options.piece_bytes = PieceBytes(options.expert.bytes(), options.on_disk);
  if (options.on_disk) options.staging_bytes = input.staging_bytes;
  const auto fill = [&](moe::ExpertFile::Places* places) {
    std::vector<int32_t> all(static_cast<size_t>(config.num_experts));
    std::iota(all.begin(), all.end(), 0);
    return LoadExpertsOf(
        input, std::move(all), [&](int64_t done, int64_t) { return places->Report(done); },
        [&](int layer, int32_t expert) { return places->At(layer, expert); });
  };
  absl::StatusOr<std::unique_ptr<moe::ExpertFile>> file = moe::ExpertFile::Open(options, fill, progress);
  // Neither the network's fault nor another worker's: another try with this directory would fail likewise.
  if (absl::IsUnavailable(file.status()) || absl::IsPermissionDenied(file.status())) {
    return absl::InvalidArgumentError(absl::StrCat("--expert_file_dir=", options.dir, ": ", file.status().message()));
  }
  return file;
}

}  // namespace switchyard::worker
