#include "workers/train/job/breathing_files.h"

#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/tensor/work_gate.h"

namespace switchyard {
namespace {

class BreathingFile final : public File {
 public:
  explicit BreathingFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<int64_t> Size() const override { return inner_->Size(); }
  absl::Status Read(int64_t begin, absl::Span<char> to) const override {
    while (to.size() > static_cast<size_t>(kBreathBytes)) {
      WorkGate::PassOwn();
      RETURN_IF_ERROR(inner_->Read(begin, to.first(kBreathBytes)));
      begin += kBreathBytes;
      to.remove_prefix(kBreathBytes);
    }
    WorkGate::PassOwn();
    return inner_->Read(begin, to);
  }
  absl::Status Append(absl::string_view bytes) override {
    return InBreaths(bytes, [this](absl::string_view piece) { return inner_->Append(piece); });
  }
  absl::Status Sync() override {
    const OutsideGate outside;  // the disk's time
    return inner_->Sync();
  }

 private:
  const std::unique_ptr<File> inner_;
};

class Files final : public FileSystem {
 public:
  explicit Files(std::unique_ptr<FileSystem> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    absl::StatusOr<std::unique_ptr<File>> file = inner_->Open(path, mode);
    if (!file.ok() || mode == OpenMode::kLock) return file;
    return std::make_unique<BreathingFile>(*std::move(file));
  }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& folder) override { return inner_->List(folder); }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_->Rename(from, to); }
  absl::Status Remove(const std::string& path) override {
    const OutsideGate outside;
    return inner_->Remove(path);
  }
  absl::Status SyncFolder(const std::string& folder) override {
    const OutsideGate outside;
    return inner_->SyncFolder(folder);
  }
  absl::StatusOr<int64_t> FreeBytes() override { return inner_->FreeBytes(); }

 private:
  const std::unique_ptr<FileSystem> inner_;
};

}  // namespace

std::unique_ptr<FileSystem> BreathingFiles(std::unique_ptr<FileSystem> inner) {
  return std::make_unique<Files>(std::move(inner));
}

absl::Status InBreaths(absl::string_view bytes, absl::FunctionRef<absl::Status(absl::string_view piece)> take) {
  while (bytes.size() > static_cast<size_t>(kBreathBytes)) {
    WorkGate::PassOwn();
    RETURN_IF_ERROR(take(bytes.substr(0, kBreathBytes)));
    bytes.remove_prefix(kBreathBytes);
  }
  WorkGate::PassOwn();
  return take(bytes);
}

}  // namespace switchyard
