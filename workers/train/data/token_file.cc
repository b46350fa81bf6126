#include "workers/train/data/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::train {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;  // a multiple of any token's bytes

int64_t ModifiedNs(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

int32_t TokenAt(absl::string_view bytes, int64_t i, int token_bytes) {
  const char* const at = bytes.data() + i * token_bytes;
  return token_bytes == 2 ? LoadInt<uint16_t>(at) : LoadInt<int32_t>(at);
}

}  // namespace

TokenFile::TokenFile(TokenFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      name_(std::move(other.name_)),
      header_(other.header_),
      modified_ns_(other.modified_ns_) {}

TokenFile::~TokenFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status TokenFile::Wrong(absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", problem));
}

absl::StatusOr<TokenFile> TokenFile::Open(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFile(name));
  TokenFile file(fd, name);
  struct stat st = {};
  if (fstat(fd, &st) != 0) return absl::InternalError(absl::StrCat(name, ": ", std::strerror(errno)));
  std::string first(static_cast<size_t>(std::min<int64_t>(st.st_size, jobs::kLlmcHeaderBytes)), '\0');
  RETURN_IF_ERROR(file.ReadBytes(0, absl::MakeSpan(first.data(), first.size())));
  const absl::StatusOr<jobs::TokenFileHeader> header = jobs::DecodeTokenHeader(first, st.st_size);
  if (!header.ok()) return file.Wrong(header.status().message());
  file.header_ = *header;
  file.modified_ns_ = ModifiedNs(st);
  return file;
}

absl::Status TokenFile::ReadBytes(int64_t begin, absl::Span<char> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t count = pread(fd_, to.data() + done, to.size() - done, begin + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::UnavailableError(absl::StrCat(name_, ": read at ", begin, ": ", std::strerror(errno)));
    if (count == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(name_, ": changed while it was read: it ends at byte ", begin + static_cast<int64_t>(done)));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckUnchanged() const {
  struct stat st = {};
  if (fstat(fd_, &st) != 0) return absl::InternalError(absl::StrCat(name_, ": ", std::strerror(errno)));
  if (st.st_size == header_.file_bytes() && ModifiedNs(st) == modified_ns_ && st.st_nlink > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name_, ": changed while it was read: ", st.st_size, " bytes, ",
                                                    header_.file_bytes(), " when it was opened",
                                                    st.st_nlink == 0 ? ", and it was deleted" : ""));
}

absl::Status TokenFile::VerifyTokens(absl::string_view bytes, int64_t first, int64_t vocab) const {
  const absl::Status inside = jobs::CheckTokens(bytes, first, header_.token_bytes, vocab);
  return inside.ok() ? inside : Wrong(inside.message());
}

absl::Status TokenFile::VerifyDocuments() const {
  constexpr int64_t kAtOnce = kChunkBytes / 8;
  std::vector<char> bytes(static_cast<size_t>(8 * std::min(kAtOnce, header_.num_documents)));
  int64_t before = -1;
  for (int64_t d = 0; d < header_.num_documents; ++d) {
    if (d % kAtOnce == 0) {
      const int64_t count = std::min(kAtOnce, header_.num_documents - d);
      RETURN_IF_ERROR(
          ReadBytes(header_.documents_at() + 8 * d, absl::MakeSpan(bytes).subspan(0, static_cast<size_t>(8 * count))));
    }
    const auto begin = LoadInt<int64_t>(bytes.data() + 8 * (d % kAtOnce));
    if ((d == 0 && begin != 0) || begin <= before || begin >= header_.num_tokens) {
      return Wrong(absl::StrCat("document ", d, " begins at token ", begin, " of ", header_.num_tokens,
                                ", the one before at ", before));
    }
    before = begin;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::Verify(int64_t vocab, absl::FunctionRef<bool(int64_t, int64_t)> progress) const {
  if (header_.vocab_size > vocab) {
    return Wrong(absl::StrCat("is made with a vocabulary of ", header_.vocab_size, " tokens, the model has ", vocab));
  }
  const int64_t end = header_.file_bytes(), tokens_end = header_.tokens_at() + header_.num_tokens * header_.token_bytes;
  uint64_t hash = Fnv1a("");
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunkBytes, end)));
  for (int64_t at = header_.header_bytes; at < end;) {
    const int64_t count = std::min(kChunkBytes, at < tokens_end ? tokens_end - at : end - at);
    RETURN_IF_ERROR(ReadBytes(at, absl::MakeSpan(chunk).subspan(0, static_cast<size_t>(count))));
    const absl::string_view bytes(chunk.data(), static_cast<size_t>(count));
    if (at < tokens_end) {
      RETURN_IF_ERROR(VerifyTokens(bytes, (at - header_.tokens_at()) / header_.token_bytes, vocab));
    }
    hash = Fnv1a(bytes, hash);
    at += count;
    if (!progress(at, end)) return absl::CancelledError(absl::StrCat(name_, ": no longer wanted"));
  }
  if (header_.header_bytes == jobs::kLlmcHeaderBytes) return CheckUnchanged();
  if (hash != header_.contents) {
    return absl::DataLossError(absl::StrCat(name_, ": damaged: its contents have another hash than its header says"));
  }
  RETURN_IF_ERROR(VerifyDocuments());
  return CheckUnchanged();
}

absl::StatusOr<bool> TokenFile::HasTarget(const jobs::TargetSearch& search,
                                          absl::FunctionRef<bool(int64_t, int64_t)> progress) const {
  return switchyard::jobs::HasTarget(header_, search, [&](int64_t begin, absl::Span<char> to) -> absl::Status {
    const int64_t end = begin + static_cast<int64_t>(to.size());
    if (!progress(end, header_.file_bytes())) return absl::CancelledError(absl::StrCat(name_, ": no longer wanted"));
    return ReadBytes(begin, to);
  });
}

absl::Status TokenFile::Read(int64_t first, absl::Span<int32_t> tokens, absl::Span<uint8_t> trained) const {
  SY_CHECK_EQ(tokens.size(), trained.size());
  const auto count = static_cast<int64_t>(tokens.size());
  SY_CHECK(first >= 0 && first + count <= header_.num_tokens);
  RETURN_IF_ERROR(CheckUnchanged());
  std::vector<char> bytes(static_cast<size_t>(count * header_.token_bytes));
  RETURN_IF_ERROR(ReadBytes(header_.tokens_at() + first * header_.token_bytes, absl::MakeSpan(bytes)));
  for (int64_t i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)] = TokenAt({bytes.data(), bytes.size()}, i, header_.token_bytes);
  }
  std::fill(trained.begin(), trained.end(), 1);
  if (!header_.masked || count == 0) return absl::OkStatus();
  const int64_t first_byte = first / 8, last_byte = (first + count - 1) / 8;
  std::vector<char> mask(static_cast<size_t>(last_byte - first_byte + 1));
  RETURN_IF_ERROR(ReadBytes(header_.mask_at() + first_byte, absl::MakeSpan(mask)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = first + i;
    trained[static_cast<size_t>(i)] = (mask[static_cast<size_t>(bit / 8 - first_byte)] >> (bit % 8)) & 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TokenFile::BeginOf(int64_t document) const {
  char bytes[8];
  RETURN_IF_ERROR(ReadBytes(header_.documents_at() + 8 * document, absl::MakeSpan(bytes)));
  const auto begin = LoadInt<int64_t>(bytes);
  if (begin >= 0 && begin < header_.num_tokens) return begin;
  return Wrong(absl::StrCat("document ", document, " begins at token ", begin, " of ", header_.num_tokens));
}

absl::Status TokenFile::AppendBegins(int64_t first, absl::Span<const int32_t> tokens,
                                     std::vector<int64_t>* begins) const {
  const int64_t end = first + static_cast<int64_t>(tokens.size());
  if (header_.document_token >= 0) {
    for (int64_t i = first; i < end; ++i) {
      if (tokens[static_cast<size_t>(i - first)] == header_.document_token) begins->push_back(i);
    }
    return absl::OkStatus();
  }
  int64_t low = 0,
          high = header_.num_documents;  // the first document that begins at `first` or later is in [low, high]
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    ASSIGN_OR_RETURN(const int64_t begin, BeginOf(middle));
    (begin < first ? low : high) = begin < first ? middle + 1 : middle;
  }
  const int64_t most = std::min(header_.num_documents - low, end - first);
  std::vector<char> bytes(static_cast<size_t>(8 * std::max<int64_t>(most, 0)));
  RETURN_IF_ERROR(ReadBytes(header_.documents_at() + 8 * low, absl::MakeSpan(bytes)));
  for (int64_t d = 0, before = first - 1; d < most; ++d) {
    const auto begin = LoadInt<int64_t>(bytes.data() + 8 * d);
    if (begin >= end) break;
    if (begin <= before)
      return Wrong(absl::StrCat("document ", low + d, " begins at token ", begin, ", expected more than ", before));
    begins->push_back(before = begin);
  }
  return absl::OkStatus();
}

absl::Status TokenFile::ReadBegins(int64_t document, absl::Span<int64_t> begins) const {
  SY_CHECK(document >= 0 && document + static_cast<int64_t>(begins.size()) <= header_.num_documents);
  RETURN_IF_ERROR(CheckUnchanged());
  std::vector<char> bytes(8 * begins.size());
  RETURN_IF_ERROR(ReadBytes(header_.documents_at() + 8 * document, absl::MakeSpan(bytes)));
  int64_t before = document - 1;  // each document before has a token at least
  for (size_t i = 0; i < begins.size(); ++i) {
    begins[i] = LoadInt<int64_t>(bytes.data() + 8 * i);
    const int64_t number = document + static_cast<int64_t>(i);
    if (begins[i] <= before || begins[i] >= header_.num_tokens || (number == 0 && begins[i] != 0)) {
      return Wrong(absl::StrCat("document ", number, " begins at token ", begins[i], " of ", header_.num_tokens,
                                ", expected more than ", before));
    }
    before = begins[i];
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> TokenFile::FindBegins(absl::FunctionRef<bool(int64_t)> progress) const {
  std::vector<int64_t> begins = {0};
  const int64_t end = header_.num_tokens * header_.token_bytes;
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunkBytes, end)));
  for (int64_t at = 0; at < end;) {
    const int64_t count = std::min(kChunkBytes, end - at), first = at / header_.token_bytes;
    RETURN_IF_ERROR(ReadBytes(header_.tokens_at() + at, absl::MakeSpan(chunk).subspan(0, static_cast<size_t>(count))));
    for (int64_t i = 0; i < count / header_.token_bytes; ++i) {
      if (first + i > 0 && TokenAt({chunk.data(), chunk.size()}, i, header_.token_bytes) == header_.document_token) {
        begins.push_back(first + i);
      }
    }
    at += count;
    if (!progress(at)) return absl::CancelledError(absl::StrCat(name_, ": no longer wanted"));
  }
  RETURN_IF_ERROR(CheckUnchanged());
  return begins;
}

}  // namespace switchyard::train
