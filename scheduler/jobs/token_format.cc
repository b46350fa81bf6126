#include "scheduler/jobs/token_format.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kMagic = "SYTOKENS";
constexpr uint32_t kVersion = 1;
constexpr size_t kHashedBytes = 64;
constexpr int64_t kMaskPieceBytes = 1 << 20;
constexpr absl::string_view kFormat = "token file";

struct LlmcKind {
  int32_t magic, version, token_bytes;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

absl::Status WrongFile(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(kFormat, ": ", problem));
}

absl::StatusOr<TokenFileHeader> CheckedSize(const TokenFileHeader& header, int64_t file_bytes) {
  if (header.file_bytes() == file_bytes) return header;
  return WrongFile(absl::StrCat("its header wants ", header.file_bytes(), " bytes, it has ", file_bytes));
}

absl::StatusOr<TokenFileHeader> DecodeLlmc(const LlmcKind& kind, absl::string_view first_bytes, int64_t file_bytes) {
  if (first_bytes.size() < static_cast<size_t>(kLlmcHeaderBytes)) {
    return WrongFile(absl::StrCat("an llm.c header has ", kLlmcHeaderBytes, " bytes, the file ", file_bytes));
  }
  const auto version = LoadInt<int32_t>(first_bytes.data() + 4), tokens = LoadInt<int32_t>(first_bytes.data() + 8);
  if (version != kind.version) {
    return WrongFile(absl::StrCat("llm.c version ", version, " with magic ", kind.magic, ", wants ", kind.version));
  }
  if (tokens < 1) return WrongFile(absl::StrCat("llm.c header: ", tokens, " tokens, wants at least 1"));
  return CheckedSize(
      {.token_bytes = kind.token_bytes, .num_tokens = tokens, .num_documents = 0, .header_bytes = kLlmcHeaderBytes},
      file_bytes);
}

}  // namespace

int64_t TokenFileHeader::file_bytes() const {
  if (header_bytes == kLlmcHeaderBytes) return header_bytes + num_tokens * token_bytes;
  return documents_at() + 8 * num_documents;
}

std::string EncodeTokenHeader(const TokenFileHeader& header) {
  std::string bytes(kMagic);
  AppendInt(kVersion, &bytes);
  AppendInt(static_cast<uint32_t>(header.token_bytes), &bytes);
  AppendInt(static_cast<uint64_t>(header.vocab_size), &bytes);
  AppendInt(header.tokenizer, &bytes);
  AppendInt(static_cast<uint64_t>(header.num_tokens), &bytes);
  AppendInt(static_cast<uint64_t>(header.num_documents), &bytes);
  AppendInt(uint64_t{header.masked}, &bytes);
  AppendInt(header.contents, &bytes);
  AppendInt(Fnv1a(bytes), &bytes);
  return bytes;
}

absl::StatusOr<TokenFileHeader> DecodeTokenHeader(absl::string_view first_bytes, int64_t file_bytes) {
  if (first_bytes.size() >= 8 && first_bytes.substr(0, 8) != kMagic) {
    for (const LlmcKind& kind : kLlmcKinds) {
      if (LoadInt<int32_t>(first_bytes.data()) == kind.magic) return DecodeLlmc(kind, first_bytes, file_bytes);
    }
    return WrongFile("begins neither as one of ours (SYTOKENS) nor as one of llm.c");
  }
  ByteReader reader(first_bytes, kFormat);
  TokenFileHeader header;
  RETURN_IF_ERROR(reader.Take(8, "magic").status());
  ASSIGN_OR_RETURN(const uint32_t version, reader.TakeInt<uint32_t>("version"));
  if (version != kVersion) return WrongFile(absl::StrCat("version ", version, ", this program reads ", kVersion));
  RETURN_IF_ERROR(reader.Take(kHashedBytes - 12, "header").status());
  ASSIGN_OR_RETURN(const uint64_t hash, reader.TakeInt<uint64_t>("hash of the header"));
  if (hash != Fnv1a(first_bytes.substr(0, kHashedBytes))) return WrongFile("its header is damaged: another hash");
  ByteReader fields(first_bytes, kFormat, 12);
  ASSIGN_OR_RETURN(const uint32_t token_bytes, fields.TakeInt<uint32_t>("bytes of a token"));
  if (token_bytes != 2 && token_bytes != 4) return WrongFile(absl::StrCat(token_bytes, " bytes a token, wants 2 or 4"));
  header.token_bytes = static_cast<int32_t>(token_bytes);
  ASSIGN_OR_RETURN(header.vocab_size, (fields.TakeIn<int64_t>("vocab", 1, int64_t{1} << 32)));
  ASSIGN_OR_RETURN(header.tokenizer, fields.TakeInt<uint64_t>("tokenizer"));
  ASSIGN_OR_RETURN(header.num_tokens, (fields.TakeIn<int64_t>("tokens", 1, kMaxTokensOfFile)));
  ASSIGN_OR_RETURN(header.num_documents, (fields.TakeIn<int64_t>("documents", 1, header.num_tokens)));
  ASSIGN_OR_RETURN(const int64_t masked, (fields.TakeIn<int64_t>("mask", 0, 1)));
  header.masked = masked == 1;
  ASSIGN_OR_RETURN(header.contents, fields.TakeInt<uint64_t>("contents"));
  return CheckedSize(header, file_bytes);
}

absl::Status CheckTokens(absl::string_view bytes, int64_t first, int32_t token_bytes, int64_t vocab) {
  const auto count = static_cast<int64_t>(bytes.size()) / token_bytes;
  for (int64_t i = 0; i < count; ++i) {
    const char* const at = bytes.data() + i * token_bytes;
    const int64_t token = token_bytes == 2 ? LoadInt<uint16_t>(at) : LoadInt<uint32_t>(at);
    if (token >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat("token ", first + i, " is ", token, ", outside [0, ", vocab, ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> HasTarget(const TokenFileHeader& header, int64_t length, ReadTokenBytes read) {
  const int64_t last = (header.num_tokens - 1) / length * length;  // of the last whole window
  if (last < 1 || !header.masked) return last >= 1;
  const int64_t end = last / 8 + 1;  // of the mask's bytes
  std::vector<char> piece(static_cast<size_t>(std::min(kMaskPieceBytes, end)));
  for (int64_t begin = 0; begin < end; begin += kMaskPieceBytes) {
    const absl::Span<char> bytes =
        absl::MakeSpan(piece).subspan(0, static_cast<size_t>(std::min(kMaskPieceBytes, end - begin)));
    RETURN_IF_ERROR(read(header.mask_at() + begin, bytes));
    if (begin == 0) bytes[0] = static_cast<char>(bytes[0] & ~1);  // token 0 follows nothing
    if (begin + kMaskPieceBytes >= end) bytes.back() = static_cast<char>(bytes.back() & (0xff >> (7 - last % 8)));
    if (std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; })) return true;
  }
  return false;
}

absl::Status NoTargetError(size_t files, int64_t tokens, int64_t length) {
  return absl::InvalidArgumentError(absl::StrCat("none of the ", tokens, " tokens of ", files,
                                                 files == 1 ? " file" : " files", " is a target in a window of ",
                                                 length,
                                                 " tokens, at least 1 is wanted: use data whose mask marks what is "
                                                 "trained (`switchyard data pack` says how much)"));
}

}  // namespace switchyard::jobs
