// What of packing can be seen to fail without packing, before a job is accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "scheduler/base/io/root_dir.h"
#include "server/jobs/pack/document_encoder.h"

namespace switchyard::server {

struct TextCheck {
  const DocumentEncoder* encoder = nullptr;
  const std::function<bool()>* cancelled = nullptr;  // asked for each block, and while a document is encoded
  int64_t read_bytes = 0;     // so much of the file is read, in whole blocks (block_reader.h); every line is parsed
  bool pairs = false;         // every line is a pair; else none may be
  int64_t encoded_bytes = 0;  // of documents that are also encoded, from the file's beginning; longer ones are not
};

// Returns the errors that Packer::Pack gives for these lines; InvalidArgument for a file without documents;
// Cancelled.  Blocks on the disk and for encoding.  Thread-safe.
absl::Status CheckTextFile(const RootDir& root, const std::string& name, const TextCheck& check);

}  // namespace switchyard::server
