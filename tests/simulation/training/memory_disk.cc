#include "tests/simulation/training/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace switchyard::simulation {
namespace {

constexpr int64_t kSector = 512;

MemoryDisk* the_disk = nullptr;

struct OpenFile : sqlite3_file {
  void* file;
  uint64_t process;
};

}  // namespace

// SQLite's calls.
struct DiskCalls {
  static MemoryDisk::File* Of(sqlite3_file* file) {
    return static_cast<MemoryDisk::File*>(static_cast<OpenFile*>(file)->file);
  }
  static bool IsOver(sqlite3_file* file) { return static_cast<OpenFile*>(file)->process != the_disk->process_; }

  static int Close(sqlite3_file*) { return SQLITE_OK; }
  static int Read(sqlite3_file* file, void* to, int size, sqlite3_int64 offset) {
    const std::string& content = Of(file)->cached;
    const int64_t there = std::clamp<int64_t>(static_cast<int64_t>(content.size()) - offset, 0, size);
    if (there > 0) std::memcpy(to, content.data() + offset, static_cast<size_t>(there));
    if (there == size) return SQLITE_OK;
    std::memset(static_cast<char*>(to) + there, 0, static_cast<size_t>(size - there));
    return SQLITE_IOERR_SHORT_READ;
  }
  static int Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 offset) {
    return IsOver(file) ? SQLITE_IOERR_WRITE : the_disk->WriteTo(Of(file), from, size, offset);
  }
  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    return IsOver(file) ? SQLITE_IOERR_TRUNCATE : the_disk->Cut(Of(file), size);
  }
  static int Sync(sqlite3_file* file, int) { return IsOver(file) ? SQLITE_IOERR_FSYNC : the_disk->Sync(Of(file)); }
  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    *size = static_cast<sqlite3_int64>(Of(file)->cached.size());
    return SQLITE_OK;
  }
  static int Lock(sqlite3_file*, int) { return SQLITE_OK; }
  static int Reserved(sqlite3_file*, int* reserved) {
    *reserved = 0;
    return SQLITE_OK;
  }
  static int Control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int SectorSize(sqlite3_file*) { return 4096; }
  static int Characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

  static int Open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    static const sqlite3_io_methods methods = {
        1,          Close,           Read,    Write,   Truncate, Sync,    FileSize, Lock,   Lock, Reserved, Control,
        SectorSize, Characteristics, nullptr, nullptr, nullptr,  nullptr, nullptr,  nullptr};
    std::unique_ptr<MemoryDisk::File>& kept = the_disk->files_[name == nullptr ? "" : name];
    if (kept == nullptr) kept = std::make_unique<MemoryDisk::File>();
    auto* const open = static_cast<OpenFile*>(file);
    open->pMethods = &methods;
    open->file = kept.get();
    open->process = the_disk->process_;
    if (out_flags != nullptr) *out_flags = flags;
    return SQLITE_OK;
  }
  static int Delete(sqlite3_vfs*, const char* name, int) {
    if (const auto it = the_disk->files_.find(name); it != the_disk->files_.end()) {
      it->second->durable.clear();
      it->second->cached.clear();
      it->second->unsynced.clear();
    }
    return SQLITE_OK;
  }
  static int Access(sqlite3_vfs*, const char* name, int, int* there) {
    const auto it = the_disk->files_.find(name);
    *there = it != the_disk->files_.end() && !it->second->cached.empty() ? 1 : 0;
    return SQLITE_OK;
  }
  static int FullPathname(sqlite3_vfs*, const char* name, int size, char* out) {
    sqlite3_snprintf(size, out, "%s", name);
    return SQLITE_OK;
  }
  static int Randomness(sqlite3_vfs*, int size, char* out) {
    for (int i = 0; i < size; ++i) out[i] = static_cast<char>(the_disk->world_.random().Below(256));
    return size;
  }
  static int Sleep(sqlite3_vfs*, int microseconds) { return microseconds; }
  static int CurrentTime(sqlite3_vfs*, double* days) {
    *days = 2460000;
    return SQLITE_OK;
  }
  static int LastError(sqlite3_vfs*, int, char*) { return 0; }
};

MemoryDisk::MemoryDisk(World* world) : world_(*world) {
  static sqlite3_vfs vfs = {.iVersion = 1,
                            .szOsFile = sizeof(OpenFile),
                            .mxPathname = 512,
                            .pNext = nullptr,
                            .zName = "simulated",
                            .pAppData = nullptr,
                            .xOpen = DiskCalls::Open,
                            .xDelete = DiskCalls::Delete,
                            .xAccess = DiskCalls::Access,
                            .xFullPathname = DiskCalls::FullPathname,
                            .xDlOpen = nullptr,
                            .xDlError = nullptr,
                            .xDlSym = nullptr,
                            .xDlClose = nullptr,
                            .xRandomness = DiskCalls::Randomness,
                            .xSleep = DiskCalls::Sleep,
                            .xCurrentTime = DiskCalls::CurrentTime,
                            .xGetLastError = DiskCalls::LastError,
                            .xCurrentTimeInt64 = nullptr,
                            .xSetSystemCall = nullptr,
                            .xGetSystemCall = nullptr,
                            .xNextSystemCall = nullptr};
  the_disk = this;
  sqlite3_vfs_register(&vfs, /*makeDflt=*/1);
  sqlite3_randomness(0, nullptr);  // begins anew, from this world's chance
}

MemoryDisk::~MemoryDisk() { the_disk = nullptr; }

void MemoryDisk::Count() {
  if (calls_left_ == 0 || --calls_left_ > 0) return;
  state_ = State::kBroken;
  std::exchange(broke_, nullptr)();
}

void MemoryDisk::Apply(const Write& write, std::string* content) {
  if (write.cuts) {
    content->resize(static_cast<size_t>(write.offset), '\0');
    return;
  }
  const size_t end = static_cast<size_t>(write.offset) + write.data.size();
  if (content->size() < end) content->resize(end, '\0');
  content->replace(static_cast<size_t>(write.offset), write.data.size(), write.data);
}

int MemoryDisk::WriteTo(File* file, const void* data, int size, int64_t offset) {
  Write write = {.offset = offset, .data = std::string(static_cast<const char*>(data), static_cast<size_t>(size))};
  Count();
  const bool fails = state_ != State::kGood;
  // A write that fails may have begun.
  if (fails) write.data.resize(write.data.size() / 2 / kSector * kSector);
  if (!fails || (!write.data.empty() && world_.random().OneIn(2))) {
    Apply(write, &file->cached);
    file->unsynced.push_back(std::move(write));
  }
  if (!fails) return SQLITE_OK;
  return state_ == State::kFull ? SQLITE_FULL : SQLITE_IOERR_WRITE;
}

int MemoryDisk::Cut(File* file, int64_t size) {
  Count();
  if (state_ == State::kBroken) return SQLITE_IOERR_TRUNCATE;
  file->unsynced.push_back({.offset = size, .data = "", .cuts = true});
  Apply(file->unsynced.back(), &file->cached);
  return SQLITE_OK;
}

int MemoryDisk::Sync(File* file) {
  Count();
  if (state_ == State::kBroken || (state_ == State::kFull && world_.random().OneIn(4))) {
    for (Write& write : file->unsynced) write.void_ = true;
    return SQLITE_IOERR_FSYNC;
  }
  // Pages of a sync that has failed count as clean: they reach the disk by chance.
  for (const Write& write : file->unsynced) {
    if (!write.void_ || world_.random().OneIn(2)) Apply(write, &file->durable);
  }
  file->unsynced.clear();
  return SQLITE_OK;
}

void MemoryDisk::LosePower() {
  for (auto& [name, file] : files_) {
    for (Write& write : file->unsynced) {
      if (!world_.random().OneIn(write.void_ ? 4 : 2)) continue;
      const auto sectors = static_cast<int64_t>(write.data.size()) / kSector;
      if (sectors > 0 && world_.random().OneIn(4))
        write.data.resize(static_cast<size_t>(world_.random().Between(0, sectors) * kSector));
      Apply(write, &file->durable);
    }
    file->unsynced.clear();
    file->cached = file->durable;
  }
}

}  // namespace switchyard::simulation
