// A FileSystem that calls a hook before each write and, optionally, others before each read and when a file is opened.
// As thread-safe as the file system inside and the hooks are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

class HookedFileSystem final : public checkpoint::FileSystem {
 public:
  using Hook = std::function<absl::Status(const std::string& path)>;  // its error becomes the call's

  HookedFileSystem(std::unique_ptr<FileSystem> inner, Hook before_append, Hook before_read = nullptr,
                   Hook before_open = nullptr)
      : inner_(std::move(inner)),
        before_append_(std::move(before_append)),
        before_read_(std::move(before_read)),
        before_open_(std::move(before_open)) {}

  absl::StatusOr<std::unique_ptr<checkpoint::File>> Open(const std::string& path, checkpoint::OpenMode mode) override {
    if (const absl::Status status = before_open_ ? before_open_(path) : absl::OkStatus(); !status.ok()) return status;
    absl::StatusOr<std::unique_ptr<checkpoint::File>> file = inner_->Open(path, mode);
    if (!file.ok()) return file.status();
    return std::make_unique<HookedFile>(*std::move(file), path, &before_append_, &before_read_);
  }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::StatusOr<std::vector<checkpoint::FolderEntry>> List(const std::string& folder) override {
    return inner_->List(folder);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override { return inner_->Rename(from, to); }
  absl::Status Remove(const std::string& path) override { return inner_->Remove(path); }
  absl::Status SyncFolder(const std::string& folder) override { return inner_->SyncFolder(folder); }
  absl::StatusOr<int64_t> FreeBytes() override { return inner_->FreeBytes(); }

 private:
  class HookedFile final : public checkpoint::File {
   public:
    HookedFile(std::unique_ptr<File> inner, std::string path, const Hook* append, const Hook* read)
        : inner_(std::move(inner)), path_(std::move(path)), append_(append), read_(read) {}
    absl::StatusOr<int64_t> Size() const override { return inner_->Size(); }
    absl::Status Read(int64_t begin, absl::Span<char> to) const override {
      absl::Status status = *read_ ? (*read_)(path_) : absl::OkStatus();
      return status.ok() ? inner_->Read(begin, to) : status;
    }
    absl::Status Append(absl::string_view bytes) override {
      absl::Status status = *append_ ? (*append_)(path_) : absl::OkStatus();
      return status.ok() ? inner_->Append(bytes) : status;
    }
    absl::Status Sync() override { return inner_->Sync(); }

   private:
    const std::unique_ptr<File> inner_;
    const std::string path_;
    const Hook* const append_;
    const Hook* const read_;
  };

  const std::unique_ptr<FileSystem> inner_;
  const Hook before_append_, before_read_, before_open_;
};

}  // namespace switchyard::train
