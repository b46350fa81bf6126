// The file of packed tokens that a training job reads: what `switchyard data pack` and the server write, byte by byte.
// llm.c's files are read, too.
//
// All integers are little-endian.
//   0   char[8]  "SYTOKENS"
//   8   u32      version, 1
//   12  u32      W: bytes of a token, 2 or 4
//   16  u64      vocab: every token is below it
//   24  u64      which tokenizer made it: FNV-1a of its tokenizer.json; 0 = unknown
//   32  u64      N: tokens, at least 1
//   40  u64      D: documents, at least 1
//   48  u64      bit 0: there is a mask; 0 = every token is trained
//                bit 1: documents 2i and 2i + 1 are a pair: a prompt with its chosen and with its rejected answer
//   56  u64      FNV-1a of all bytes behind the header
//   64  u64      FNV-1a of the 64 bytes before
//   72           N tokens of W bytes; zeros up to a multiple of 8
//                with a mask: N bits, the lowest of a byte first, 1 = is trained; zeros up to a multiple of 8
//                D u64: the token that begins each document, rising, the first 0
// Nothing follows.  A token that is not trained is seen, but is nobody's target.
// llm.c: 256 int32 {20240520, 1, N, …}, then N u16; or {20240801, 7, N, …}, then N u32 (dev/data/data_common.py).  Its
// files do not say where documents begin, but each begins with a token of its tokenizer: GPT-2's 50256, Llama 3's
// 128000.
//
// Pure: the caller reads and writes.  Errors are InvalidArgument, with what was wanted and what was there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::jobs {

inline constexpr int64_t kTokenHeaderBytes = 72;
inline constexpr int64_t kLlmcHeaderBytes = 1024;
inline constexpr int64_t kMaxTokensOfFile = int64_t{1} << 40;

struct TokenFileHeader {
  int32_t token_bytes = 2;
  int64_t vocab_size = 0;  // of an llm.c file: 0, unknown
  uint64_t tokenizer = 0;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  bool masked = false;
  bool pairs = false;     // documents 2i and 2i + 1 belong together
  uint64_t contents = 0;  // FNV-1a of what follows the header; of an llm.c file 0, unknown
  int64_t header_bytes = kTokenHeaderBytes;
  int32_t document_token = -1;  // of an llm.c file: begins each document; -1: their begins are in the file

  // Where things are in the file.
  int64_t tokens_at() const { return header_bytes; }
  int64_t mask_at() const { return Padded(tokens_at() + num_tokens * token_bytes); }  // if masked
  int64_t documents_at() const { return masked ? Padded(mask_at() + (num_tokens + 7) / 8) : mask_at(); }
  int64_t file_bytes() const;

 private:
  static int64_t Padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }
};

// REQUIRES: a header of our own format.
std::string EncodeTokenHeader(const TokenFileHeader& header);
// first_bytes: the file's first kLlmcHeaderBytes, or all of a shorter one.  The file must be as long as its header
// says.
absl::StatusOr<TokenFileHeader> DecodeTokenHeader(absl::string_view first_bytes, int64_t file_bytes);
// bytes: tokens of `token_bytes` each, from token `first` of their file on.  InvalidArgument "token 7 is
// 400, outside [0, 300)".
absl::Status CheckTokens(absl::string_view bytes, int64_t first, int32_t token_bytes, int64_t vocab);

// Fills `to` with the file's bytes from `begin` on; its error ends the search.
using ReadTokenBytes = absl::FunctionRef<absl::Status(int64_t begin, absl::Span<char> to)>;

// What is searched for targets.
struct TargetSearch {
  int64_t length = 0;          // tokens of a window, at least 1
  bool document_mask = false;  // the first token of a document is nobody's target (JobSpec::document_mask)
};
// Of a job's data.  Windows of whole documents cover every token, as windows of one token do.
TargetSearch TargetSearchOf(const JobSpec& spec);

// Whether some token that windows cover is a target.  Window w of a file are the tokens [w * length,
// w * length + length]; all but the first are targets where the mask says so.  Reads the mask and documents' begins, no
// token (so that of an llm.c file any token counts), and no further than the first target.
// Errors: those of `read`; InvalidArgument for begins that do not rise.  REQUIRES: the header is of a whole file.
absl::StatusOr<bool> HasTarget(const TokenFileHeader& header, const TargetSearch& search, ReadTokenBytes read);

// Whether a file of so many tokens in so many documents fills a window of the job.  (Where documents are not counted,
// as in llm.c's files, 0: they may.)
bool HasWindow(const JobSpec& spec, int64_t tokens, int64_t documents);
// InvalidArgument: why a dataset of so many tokens can have no weight.
absl::Status NoWindowError(absl::string_view name, int64_t tokens, int64_t length);

// InvalidArgument: why so many files of so many tokens in all are of no use.
absl::Status NoTargetError(size_t files, int64_t tokens, int64_t length);

}  // namespace switchyard::jobs
