#include "server/jobs/pack/text_check.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/pack/block_reader.h"
#include "server/jobs/pack/document.h"

namespace switchyard::server {

absl::Status CheckTextFile(const RootDir& root, const std::string& name, const TextCheck& check) {
  ASSIGN_OR_RETURN(const int opened, root.OpenFile(name));
  const UniqueFd fd(opened);
  ASSIGN_OR_RETURN(BlockReader reader, BlockReader::Create(fd.get(), name, kMaxLineBytes));
  int64_t documents = 0, encoded = 0, read = 0;
  while (read < check.read_bytes) {
    if ((*check.cancelled)()) return absl::CancelledError("the check of text is no longer wanted");
    ASSIGN_OR_RETURN(const LineBlock block, reader.Next());
    if (block.bytes.empty()) {
      if (documents > 0) return absl::OkStatus();
      return NoDocumentsError(name);
    }
    read += static_cast<int64_t>(block.bytes.size());
    RETURN_IF_ERROR(VisitLines(name, block, kMaxLineBytes, [&](absl::string_view line) -> absl::Status {
      ++documents;
      ASSIGN_OR_RETURN(const Document document, ParseDocument(line));
      RETURN_IF_ERROR(CheckKind(document, check.pairs));
      if (static_cast<int64_t>(line.size()) > check.encoded_bytes - encoded) return absl::OkStatus();
      encoded += static_cast<int64_t>(line.size());
      PackedTokens tokens;
      return check.encoder->Append(document, *check.cancelled, &tokens);
    }));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
