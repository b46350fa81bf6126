// Writes a file of packed tokens (scheduler/jobs/token_format.h), whole or not at all.
//
// Memory does not grow with the file.  It writes ".NAME.part" beside the final place, makes it durable and renames it;
// a killed writer leaves at most that file, which the next one overwrites.  A lock excludes a second writer.
// Thread-compatible.  Errors name the file: AlreadyExists, Aborted (another writer), ResourceExhausted (no room), or
// the system's error.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/jobs/token_format.h"
#include "server/jobs/pack/document_encoder.h"

namespace switchyard::server {

struct TokenWriterOptions {
  std::string name = {};  // of the file, in its folder
  std::string path = {};  // for messages
  bool replace = false;
  int64_t vocab_size = 0;  // every token is below it
  uint64_t tokenizer = 0;
  bool pairs = false;  // documents 2i and 2i + 1 are a pair
};

// A file to which bytes are appended in large pieces.
class AppendFile {
 public:
  AppendFile() = default;
  AppendFile(UniqueFd fd, int64_t begin) : fd_(std::move(fd)), end_(begin) {}

  int fd() const { return fd_.get(); }
  int64_t size() const { return end_ + static_cast<int64_t>(waiting_.size()); }
  // Returns errno's status, without the file's name.
  absl::Status Append(absl::string_view bytes);
  absl::Status Flush();

 private:
  UniqueFd fd_;
  int64_t end_ = 0;  // written
  std::string waiting_;
};

class TokenWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TokenWriter>> Create(UniqueFd folder, TokenWriterOptions options);
  // Removes an unfinished file.
  ~TokenWriter();

  absl::Status Append(const PackedTokens& tokens);
  // The file is durable when this returns OK.  `check` is called between pieces and before slow calls; its error ends
  // the work.  REQUIRES: a document was appended; this is the last call.
  absl::Status Finish(absl::FunctionRef<absl::Status()> check);

  int64_t num_documents() const { return header_.num_documents; }
  int64_t num_tokens() const { return header_.num_tokens; }
  int64_t num_trained() const { return num_trained_; }

 private:
  TokenWriter(UniqueFd folder, TokenWriterOptions options);
  absl::Status Open();
  absl::StatusOr<UniqueFd> OpenUnnamed(absl::string_view suffix);
  absl::Status AppendParts(const PackedTokens& tokens);
  void AppendMask(const PackedTokens& tokens, std::string* bytes);
  absl::Status CopyFrom(AppendFile* part, absl::FunctionRef<absl::Status()> check);
  absl::Status AppendHashed(absl::string_view bytes);
  absl::Status WriteRest(absl::FunctionRef<absl::Status()> check);
  absl::Status Publish();
  absl::Status Failed(const absl::Status& status) const;

  const UniqueFd folder_;
  const TokenWriterOptions options_;
  const std::string part_name_;
  jobs::TokenFileHeader header_;
  AppendFile tokens_, mask_, documents_;  // the latter two are unnamed files, appended to the tokens at the end
  uint8_t mask_bits_ = 0;                 // of the last tokens, which are fewer than 8
  int64_t num_trained_ = 0;
  bool unfinished_ = false;  // this writer must remove part_name_
};

}  // namespace switchyard::server
