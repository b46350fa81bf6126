// Reads a file of packed tokens (scheduler/jobs/token_format.h), with pread: a file that shrinks gives an error and no
// signal.  Thread-safe after Open.
// Errors: InvalidArgument for a wrong header or token, DataLoss for contents that do not match the header's hash,
// FailedPrecondition "… changed while it was read" if it is another file than at Open, Unavailable when the disk fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::train {

class TokenFile {
 public:
  static absl::StatusOr<TokenFile> Open(const RootDir& root, const std::string& name);
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;
  ~TokenFile();

  const std::string& name() const { return name_; }
  const jobs::TokenFileHeader& header() const { return header_; }

  // Reads everything once: tokens below vocab, mask, documents, the hash.  false from progress stops it (Cancelled).
  absl::Status Verify(int64_t vocab, absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress) const;
  // Whether windows have a target (token_format.h).  progress: as Verify's, asked for each piece.
  absl::StatusOr<bool> HasTarget(const jobs::TargetSearch& search,
                                 absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress) const;
  // tokens[i] and whether it is trained, from token `first` on.  REQUIRES: they are in the file, equal sizes.
  absl::Status Read(int64_t first, absl::Span<int32_t> tokens, absl::Span<uint8_t> trained) const;
  // Appends the documents' begins in [first, first + tokens.size()), rising.  tokens: what Read gave for them.
  absl::Status AppendBegins(int64_t first, absl::Span<const int32_t> tokens, std::vector<int64_t>* begins) const;
  // Where the documents from this one on begin.  REQUIRES: the file has a list of them, and these are in it.
  absl::Status ReadBegins(int64_t document, absl::Span<int64_t> begins) const;
  // Where all documents of an llm.c file begin: reads all tokens.  The first token always begins one.  progress: as
  // Verify's, of the tokens' bytes.
  absl::StatusOr<std::vector<int64_t>> FindBegins(absl::FunctionRef<bool(int64_t bytes_done)> progress) const;
  // Bytes that are read to know where all documents begin.
  int64_t begins_bytes() const {
    return header_.document_token >= 0 ? header_.num_tokens * header_.token_bytes : 8 * header_.num_documents;
  }

 private:
  TokenFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
  absl::Status Wrong(absl::string_view problem) const;
  absl::Status ReadBytes(int64_t begin, absl::Span<char> to) const;
  absl::Status CheckUnchanged() const;
  absl::Status VerifyTokens(absl::string_view bytes, int64_t first, int64_t vocab) const;
  absl::Status VerifyDocuments() const;
  // Where document d begins.
  absl::StatusOr<int64_t> BeginOf(int64_t document) const;

  int fd_ = -1;
  std::string name_;
  jobs::TokenFileHeader header_;
  int64_t modified_ns_ = 0;
};

}  // namespace switchyard::train
