#include "workers/train/breathing_files.h"

#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

class BreathingFile final : public File {
 public:
  BreathingFile(std::unique_ptr<File> inner, const std::function<void()>* breathe)
      : inner_(std::move(inner)), breathe_(*breathe) {}

  absl::StatusOr<int64_t> Size() const override { return inner_->Size(); }
  absl::Status Read(int64_t begin, absl::Span<char> to) const override {
    while (to.size() > static_cast<size_t>(kBreathBytes)) {
      breathe_();
      RETURN_IF_ERROR(inner_->Read(begin, to.first(kBreathBytes)));
      begin += kBreathBytes;
      to.remove_prefix(kBreathBytes);
    }
    breathe_();
    return inner_->Read(begin, to);
  }
  absl::Status Append(absl::string_view bytes) override {
    return InBreaths(bytes, [this](absl::string_view piece) {
      breathe_();
      return inner_->Append(piece);
    });
  }
  absl::Status Sync() override { return inner_->Sync(); }

 private:
  const std::unique_ptr<File> inner_;
  const std::function<void()>& breathe_;
};

class Files final : public FileSystem {
 public:
  Files(std::unique_ptr<FileSystem> inner, std::function<void()> breathe)
      : inner_(std::move(inner)), breathe_(std::move(breathe)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    absl::StatusOr<std::unique_ptr<File>> file = inner_->Open(path, mode);
    if (!file.ok() || mode == OpenMode::kLock) return file;
    return std::make_unique<BreathingFile>(*std::move(file), &breathe_);
  }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& folder) override { return inner_->List(folder); }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_->Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return inner_->Remove(path); }
  absl::Status SyncFolder(const std::string& folder) override { return inner_->SyncFolder(folder); }
  absl::StatusOr<int64_t> FreeBytes() override { return inner_->FreeBytes(); }

 private:
  const std::unique_ptr<FileSystem> inner_;
  const std::function<void()> breathe_;
};

}  // namespace

std::unique_ptr<FileSystem> BreathingFiles(std::unique_ptr<FileSystem> inner, std::function<void()> breathe) {
  return std::make_unique<Files>(std::move(inner), std::move(breathe));
}

absl::Status InBreaths(absl::string_view bytes, absl::FunctionRef<absl::Status(absl::string_view piece)> take) {
  while (bytes.size() > static_cast<size_t>(kBreathBytes)) {
    RETURN_IF_ERROR(take(bytes.substr(0, kBreathBytes)));
    bytes.remove_prefix(kBreathBytes);
  }
  return take(bytes);
}

}  // namespace switchyard
