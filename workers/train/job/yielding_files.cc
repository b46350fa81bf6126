#include "workers/train/job/yielding_files.h"

#include <string>
#include <utility>
#include <vector>

#include "scheduler/base/status_macros.h"
#include "workers/tensor/yield_point.h"

namespace switchyard::train {
namespace {

class YieldingFile final : public checkpoint::File {
 public:
  explicit YieldingFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<int64_t> Size() const override { return inner_->Size(); }
  absl::Status Read(int64_t begin, absl::Span<char> to) const override {
    while (to.size() > static_cast<size_t>(kYieldBytes)) {
      YieldPoint::PassOwn();
      RETURN_IF_ERROR(inner_->Read(begin, to.first(kYieldBytes)));
      begin += kYieldBytes;
      to.remove_prefix(kYieldBytes);
    }
    YieldPoint::PassOwn();
    return inner_->Read(begin, to);
  }
  absl::Status Append(absl::string_view bytes) override {
    return InYieldingPieces(bytes, [this](absl::string_view piece) { return inner_->Append(piece); });
  }
  absl::Status Sync() override {
    const NonYieldingScope outside;  // the thread waits for the disk
    return inner_->Sync();
  }

 private:
  const std::unique_ptr<File> inner_;
};

class Files final : public checkpoint::FileSystem {
 public:
  explicit Files(std::unique_ptr<FileSystem> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<checkpoint::File>> Open(const std::string& path, checkpoint::OpenMode mode) override {
    absl::StatusOr<std::unique_ptr<checkpoint::File>> file = inner_->Open(path, mode);
    if (!file.ok() || mode == checkpoint::OpenMode::kLock) return file;
    return std::make_unique<YieldingFile>(*std::move(file));
  }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::StatusOr<std::vector<checkpoint::FolderEntry>> List(const std::string& folder) override {
    return inner_->List(folder);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_->Rename(from, to); }
  absl::Status Remove(const std::string& path) override {
    const NonYieldingScope outside;
    return inner_->Remove(path);
  }
  absl::Status SyncFolder(const std::string& folder) override {
    const NonYieldingScope outside;
    return inner_->SyncFolder(folder);
  }
  absl::StatusOr<int64_t> FreeBytes() override { return inner_->FreeBytes(); }

 private:
  const std::unique_ptr<FileSystem> inner_;
};

}  // namespace

std::unique_ptr<checkpoint::FileSystem> YieldingFiles(std::unique_ptr<checkpoint::FileSystem> inner) {
  return std::make_unique<Files>(std::move(inner));
}

absl::Status InYieldingPieces(absl::string_view bytes, absl::FunctionRef<absl::Status(absl::string_view piece)> take) {
  while (bytes.size() > static_cast<size_t>(kYieldBytes)) {
    YieldPoint::PassOwn();
    RETURN_IF_ERROR(take(bytes.substr(0, kYieldBytes)));
    bytes.remove_prefix(kYieldBytes);
  }
  YieldPoint::PassOwn();
  return take(bytes);
}

}  // namespace switchyard::train
