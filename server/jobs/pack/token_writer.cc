#include "server/jobs/pack/token_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/errno_status.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/write_whole.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr int64_t kSmallVocab = 1 << 16;  // tokens of two bytes

absl::Status FromErrno(absl::string_view what) {
  const int error = errno;
  const absl::Status status = ErrnoStatus(error, what);
  return error == EIO ? absl::DataLossError(status.message()) : status;
}

absl::Status WriteAt(int fd, int64_t at, absl::string_view bytes) {
  errno = WriteWholeAt(fd, at, bytes);
  return errno == 0 ? absl::OkStatus() : FromErrno("write");
}

}  // namespace

absl::Status AppendFile::Append(absl::string_view bytes) {
  waiting_.append(bytes.data(), bytes.size());
  return waiting_.size() < kPieceBytes ? absl::OkStatus() : Flush();
}

absl::Status AppendFile::Flush() {
  RETURN_IF_ERROR(WriteAt(fd_.get(), end_, waiting_));
  end_ += static_cast<int64_t>(waiting_.size());
  waiting_.clear();
  return absl::OkStatus();
}

TokenWriter::TokenWriter(UniqueFd folder, TokenWriterOptions options)
    : folder_(std::move(folder)), options_(std::move(options)), part_name_(absl::StrCat(".", options_.name, ".part")) {
  header_.token_bytes = options_.vocab_size <= kSmallVocab ? 2 : 4;
  header_.vocab_size = options_.vocab_size;
  header_.tokenizer = options_.tokenizer;
  header_.pairs = options_.pairs;
  header_.contents = Fnv1a("");
}

absl::Status TokenWriter::Failed(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(options_.path, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<TokenWriter>> TokenWriter::Create(UniqueFd folder, TokenWriterOptions options) {
  auto writer = std::unique_ptr<TokenWriter>(new TokenWriter(std::move(folder), std::move(options)));
  RETURN_IF_ERROR(writer->Failed(writer->Open()));
  return writer;
}

absl::Status TokenWriter::Open() {
  if (!options_.replace && faccessat(folder_.get(), options_.name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    return absl::AlreadyExistsError("is there already");
  }
  UniqueFd fd(openat(folder_.get(), part_name_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd.get() < 0) return FromErrno("cannot be made");
  // The former holder of the lock may have renamed this file to its final name meanwhile: then it is not a part any
  // more.
  struct stat opened = {}, named = {};
  const bool ours = flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fstat(fd.get(), &opened) == 0 &&
                    fstatat(folder_.get(), part_name_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                    opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  if (!ours) return absl::AbortedError("somebody else is writing it");
  unfinished_ = true;
  if (ftruncate(fd.get(), 0) != 0) return FromErrno("cannot be made");
  tokens_ = AppendFile(std::move(fd), jobs::kTokenHeaderBytes);
  ASSIGN_OR_RETURN(UniqueFd mask, OpenUnnamed("mask"));
  mask_ = AppendFile(std::move(mask), 0);
  ASSIGN_OR_RETURN(UniqueFd documents, OpenUnnamed("documents"));
  documents_ = AppendFile(std::move(documents), 0);
  return absl::OkStatus();
}

// Opens a file on the same disk that disappears with its descriptor.
absl::StatusOr<UniqueFd> TokenWriter::OpenUnnamed(absl::string_view suffix) {
  const std::string name = absl::StrCat(part_name_, ".", suffix);
  UniqueFd fd(
      openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (fd.get() < 0 || unlinkat(folder_.get(), name.c_str(), 0) != 0) return FromErrno("cannot be made");
  return fd;
}

TokenWriter::~TokenWriter() {
  if (unfinished_) unlinkat(folder_.get(), part_name_.c_str(), 0);
}

absl::Status TokenWriter::AppendHashed(absl::string_view bytes) {
  header_.contents = Fnv1a(bytes, header_.contents);
  return tokens_.Append(bytes);
}

void TokenWriter::AppendMask(const PackedTokens& tokens, std::string* bytes) {
  int64_t bit = header_.num_tokens;
  for (const uint8_t trained : tokens.trained) {
    mask_bits_ = static_cast<uint8_t>(mask_bits_ | (trained << (bit % 8)));
    num_trained_ += trained;
    if (++bit % 8 == 0) bytes->push_back(static_cast<char>(std::exchange(mask_bits_, uint8_t{0})));
  }
}

absl::Status TokenWriter::AppendParts(const PackedTokens& tokens) {
  const auto count = static_cast<int64_t>(tokens.ids.size());
  if (header_.num_tokens + count > jobs::kMaxTokensOfFile) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", jobs::kMaxTokensOfFile, " tokens"));
  }
  std::string bytes, mask, begins;
  bytes.reserve(tokens.ids.size() * static_cast<size_t>(header_.token_bytes));
  for (const int32_t id : tokens.ids) {
    header_.token_bytes == 2 ? AppendInt(static_cast<uint16_t>(id), &bytes) : AppendInt(id, &bytes);
  }
  RETURN_IF_ERROR(AppendHashed(bytes));
  AppendMask(tokens, &mask);
  RETURN_IF_ERROR(mask_.Append(mask));
  for (const int64_t begin : tokens.begins) AppendInt(static_cast<uint64_t>(header_.num_tokens + begin), &begins);
  RETURN_IF_ERROR(documents_.Append(begins));
  header_.num_tokens += count;
  header_.num_documents += static_cast<int64_t>(tokens.begins.size());
  return absl::OkStatus();
}

absl::Status TokenWriter::Append(const PackedTokens& tokens) { return Failed(AppendParts(tokens)); }

// Appends another file's bytes after the tokens, from the next multiple of 8 on.
absl::Status TokenWriter::CopyFrom(AppendFile* part, absl::FunctionRef<absl::Status()> check) {
  RETURN_IF_ERROR(AppendHashed(std::string(static_cast<size_t>(-tokens_.size() & 7), '\0')));
  RETURN_IF_ERROR(part->Flush());
  std::string piece(kPieceBytes, '\0');
  for (int64_t at = 0; at < part->size();) {
    const ssize_t count = pread(part->fd(), piece.data(), piece.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FromErrno("read");
    if (count == 0) return absl::DataLossError(absl::StrCat("a file of ours ends at byte ", at));
    RETURN_IF_ERROR(AppendHashed(absl::string_view(piece.data(), static_cast<size_t>(count))));
    at += count;
    RETURN_IF_ERROR(check());
  }
  return absl::OkStatus();
}

absl::Status TokenWriter::WriteRest(absl::FunctionRef<absl::Status()> check) {
  header_.masked = num_trained_ < header_.num_tokens;
  if (header_.masked) {
    if (header_.num_tokens % 8 != 0) {
      const char last = static_cast<char>(mask_bits_);
      RETURN_IF_ERROR(mask_.Append(absl::string_view(&last, 1)));
    }
    RETURN_IF_ERROR(CopyFrom(&mask_, check));
  }
  RETURN_IF_ERROR(CopyFrom(&documents_, check));
  RETURN_IF_ERROR(tokens_.Flush());
  return WriteAt(tokens_.fd(), 0, jobs::EncodeTokenHeader(header_));
}

absl::Status TokenWriter::Publish() {
  if (fsync(tokens_.fd()) != 0) return FromErrno("fsync");
  const char *from = part_name_.c_str(), *to = options_.name.c_str();
  if (options_.replace) {
    if (renameat(folder_.get(), from, folder_.get(), to) != 0) return FromErrno("rename");
    unfinished_ = false;
  } else if (renameat2(folder_.get(), from, folder_.get(), to, RENAME_NOREPLACE) == 0) {
    unfinished_ = false;
  } else if (errno == EEXIST) {
    return absl::AlreadyExistsError("is there already: it was made meanwhile");
  } else if (errno != EINVAL && errno != ENOSYS) {
    return FromErrno("rename");
  } else if (linkat(folder_.get(), from, folder_.get(), to, 0) != 0) {  // a file system without that flag
    return FromErrno("link");
  }
  if (fsync(folder_.get()) != 0) return FromErrno("fsync of its folder");
  return absl::OkStatus();
}

absl::Status TokenWriter::Finish(absl::FunctionRef<absl::Status()> check) {
  RETURN_IF_ERROR(Failed(WriteRest(check)));
  RETURN_IF_ERROR(check());
  return Failed(Publish());
}

}  // namespace switchyard::server
