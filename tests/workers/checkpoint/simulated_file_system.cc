#include "tests/workers/checkpoint/simulated_file_system.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {

constexpr int kRoot = 0;

absl::Status SimulatedFileSystem::Disk::Step(const std::string& what) {
  ++calls;
  if (crash_at > 0 && calls >= crash_at) return absl::AbortedError(absl::StrCat(what, ": the machine is down"));
  if (calls == fail_at) return absl::Status(code, absl::StrCat(what, ": made to fail"));
  return absl::OkStatus();
}

class SimulatedFile : public File {
 public:
  SimulatedFile(std::shared_ptr<SimulatedFileSystem::Disk> disk, int inode, std::string path, OpenMode mode)
      : disk_(std::move(disk)), inode_(inode), path_(std::move(path)), mode_(mode) {}
  ~SimulatedFile() override {
    if (mode_ == OpenMode::kLock) self().locked = false;
  }

  absl::StatusOr<int64_t> Size() const override { return static_cast<int64_t>(self().live.size()); }
  absl::Status Read(int64_t begin, absl::Span<char> to) const override {
    const std::string& live = self().live;
    if (begin + static_cast<int64_t>(to.size()) > static_cast<int64_t>(live.size())) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", live.size()));
    }
    live.copy(to.data(), to.size(), static_cast<size_t>(begin));
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    SY_CHECK(mode_ != OpenMode::kRead);
    const bool down = disk_->crash_at > 0 && disk_->calls >= disk_->crash_at;
    const absl::Status status = disk_->Step(absl::StrCat(path_, ": write"));
    if (!status.ok()) bytes = bytes.substr(0, down ? 0 : bytes.size() / 2);
    self().live.append(bytes.data(), bytes.size());
    self().stable.append(bytes.data(), bytes.size());
    return status;
  }
  absl::Status Sync() override {
    SimulatedFileSystem::Inode& inode = self();
    const absl::Status status = disk_->Step(absl::StrCat(path_, ": sync"));
    if (status.ok()) {
      inode.durable = inode.stable;
    } else if (!absl::IsAborted(status)) {
      for (size_t i = inode.durable.size(); i < inode.stable.size(); ++i) inode.stable[i] = '\0';
    }
    return status;
  }

 private:
  SimulatedFileSystem::Inode& self() const { return disk_->inodes.at(inode_); }

  const std::shared_ptr<SimulatedFileSystem::Disk> disk_;
  const int inode_;
  const std::string path_;
  const OpenMode mode_;
};

SimulatedFileSystem::SimulatedFileSystem() : disk_(std::make_shared<Disk>()) { disk_->inodes[kRoot].is_folder = true; }

absl::StatusOr<int> SimulatedFileSystem::Find(const std::string& path) const {
  CheckpointPath parsed;
  ASSIGN_OR_RETURN(parsed, ParseCheckpointPath(path));
  int at = kRoot;
  for (const std::string& name : {parsed.folder, parsed.name}) {
    if (name.empty()) continue;
    const auto& entries = disk_->inodes.at(at).entries;
    const auto it = entries.find(name);
    if (it == entries.end()) return absl::NotFoundError(absl::StrCat(path, ": No such file or directory"));
    at = it->second;
  }
  return at;
}

absl::StatusOr<std::pair<int, std::string>> SimulatedFileSystem::FindPlace(const std::string& path) const {
  CheckpointPath parsed;
  ASSIGN_OR_RETURN(parsed, ParseCheckpointPath(path));
  int folder = 0;
  ASSIGN_OR_RETURN(folder, Find(parsed.folder));
  return std::make_pair(folder, parsed.name);
}

void SimulatedFileSystem::Apply(int folder, const Change& change) {
  Inode& inode = disk_->inodes.at(folder);
  if (!change.erased.empty()) inode.entries.erase(change.erased);
  if (!change.set.empty()) inode.entries[change.set] = change.inode;
  inode.pending.push_back(change);
}

int SimulatedFileSystem::NewInode(bool is_folder) {
  const int number = static_cast<int>(disk_->inodes.size());
  disk_->inodes[number].is_folder = is_folder;
  return number;
}

absl::StatusOr<std::unique_ptr<File>> SimulatedFileSystem::Open(const std::string& path, OpenMode mode) {
  std::pair<int, std::string> place;
  ASSIGN_OR_RETURN(place, FindPlace(path));
  absl::StatusOr<int> inode = Find(path);
  if (mode == OpenMode::kRead || (mode == OpenMode::kLock && inode.ok())) {
    RETURN_IF_ERROR(inode.status());
  } else {
    if (inode.ok()) return absl::AlreadyExistsError(path);
    RETURN_IF_ERROR(disk_->Step(absl::StrCat(path, ": create")));
    inode = NewInode(false);
    Apply(place.first, {"", place.second, *inode});
  }
  Inode& found = disk_->inodes.at(*inode);
  if (found.is_folder) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  if (mode == OpenMode::kLock) {
    if (found.locked) return absl::FailedPreconditionError(absl::StrCat(path, ": locked by ", found.live));
    found.locked = true;
    found.live.clear();
    found.stable.clear();
  }
  return std::make_unique<SimulatedFile>(disk_, *inode, path, mode);
}

absl::Status SimulatedFileSystem::MakeFolder(const std::string& path) {
  if (Find(path).ok()) return absl::AlreadyExistsError(path);
  RETURN_IF_ERROR(disk_->Step(absl::StrCat(path, ": make")));
  Apply(kRoot, {"", path, NewInode(true)});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FolderEntry>> SimulatedFileSystem::List(const std::string& folder) {
  int inode = 0;
  ASSIGN_OR_RETURN(inode, Find(folder));
  std::vector<FolderEntry> entries;
  for (const auto& [name, number] : disk_->inodes.at(inode).entries) {
    entries.push_back({name, disk_->inodes.at(number).is_folder});
  }
  return entries;
}

absl::Status SimulatedFileSystem::Rename(const std::string& from, const std::string& to) {
  int inode = 0;
  ASSIGN_OR_RETURN(inode, Find(from));
  std::pair<int, std::string> source, target;
  ASSIGN_OR_RETURN(source, FindPlace(from));
  ASSIGN_OR_RETURN(target, FindPlace(to));
  SY_CHECK_EQ(source.first, target.first);
  const absl::StatusOr<int> replaced = Find(to);
  if (replaced.ok() && !disk_->inodes.at(*replaced).entries.empty()) return absl::AlreadyExistsError(to);
  RETURN_IF_ERROR(disk_->Step(absl::StrCat(from, ": rename")));
  Apply(source.first, {source.second, target.second, inode});
  return absl::OkStatus();
}

absl::Status SimulatedFileSystem::Remove(const std::string& path) {
  int inode = 0;
  ASSIGN_OR_RETURN(inode, Find(path));
  if (!disk_->inodes.at(inode).entries.empty()) return absl::AlreadyExistsError(absl::StrCat(path, ": not empty"));
  std::pair<int, std::string> place;
  ASSIGN_OR_RETURN(place, FindPlace(path));
  RETURN_IF_ERROR(disk_->Step(absl::StrCat(path, ": remove")));
  Apply(place.first, {place.second, "", 0});
  return absl::OkStatus();
}

absl::Status SimulatedFileSystem::SyncFolder(const std::string& folder) {
  int number = 0;
  ASSIGN_OR_RETURN(number, Find(folder));
  Inode& inode = disk_->inodes.at(number);
  const absl::Status status = disk_->Step(absl::StrCat(folder, ": sync"));
  if (absl::IsAborted(status)) return status;
  for (const Change& change : inode.pending) {
    if (!status.ok()) break;
    if (!change.erased.empty()) inode.durable_entries.erase(change.erased);
    if (!change.set.empty()) inode.durable_entries[change.set] = change.inode;
  }
  inode.pending.clear();  // done, or lost
  return status;
}

std::unique_ptr<SimulatedFileSystem> SimulatedFileSystem::Restart(CrashState state, uint64_t seed) const {
  auto next = std::make_unique<SimulatedFileSystem>();
  next->disk_->inodes = disk_->inodes;
  const auto random = [&seed] { return SplitMix(seed += kSplitMixStep); };
  for (auto& [number, inode] : next->disk_->inodes) {
    inode.locked = false;
    for (const Change& change : inode.pending) {
      const bool kept = state == CrashState::kRandom
                            ? random() % 2 == 0
                            : state != CrashState::kNothing && state != CrashState::kContentsNoNames;
      if (!kept) continue;
      if (!change.erased.empty()) inode.durable_entries.erase(change.erased);
      if (!change.set.empty()) inode.durable_entries[change.set] = change.inode;
    }
    inode.pending.clear();
    inode.entries = inode.durable_entries;
    const size_t fresh = inode.stable.size() - std::min(inode.stable.size(), inode.durable.size());
    size_t kept = 0;
    if (state == CrashState::kEverything || state == CrashState::kContentsNoNames) kept = fresh;
    if (state == CrashState::kHalfFiles) kept = fresh / 2;
    if (state == CrashState::kRandom) kept = random() % (fresh + 1);
    if (fresh > 0) inode.durable = inode.stable.substr(0, inode.durable.size() + kept);
    inode.live = inode.stable = inode.durable;
  }
  return next;
}

std::string* SimulatedFileSystem::Contents(const std::string& path) {
  const absl::StatusOr<int> inode = Find(path);
  return inode.ok() ? &disk_->inodes.at(*inode).live : nullptr;
}

}  // namespace switchyard::checkpoint
