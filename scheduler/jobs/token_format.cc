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
  int32_t magic, version, token_bytes, document_token;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2, 50256}, {20240801, 7, 4, 128000}};

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
  return CheckedSize({.token_bytes = kind.token_bytes,
                      .num_tokens = tokens,
                      .num_documents = 0,
                      .header_bytes = kLlmcHeaderBytes,
                      .document_token = kind.document_token},
                     file_bytes);
}

// The documents' begins of a file, read piece by piece in rising order.
class DocumentBegins {
 public:
  DocumentBegins(const TokenFileHeader& header, ReadTokenBytes read) : header_(header), read_(read) {}

  // Calls use(begin) for all that are below `end` and were not used before.
  template <class Use>
  absl::Status Below(int64_t end, const Use& use) {
    for (; next_ < header_.num_documents; ++next_) {
      const int64_t at = next_ % kAtOnce;
      if (at == 0 && read_to_ == next_) RETURN_IF_ERROR(ReadPiece());
      const auto begin = LoadInt<int64_t>(piece_.data() + 8 * at);
      if (begin <= before_ || begin >= header_.num_tokens) {
        return WrongFile(absl::StrCat("document ", next_, " begins at token ", begin, " of ", header_.num_tokens,
                                      ", the one before at ", before_));
      }
      if (begin >= end) return absl::OkStatus();
      before_ = begin;
      use(begin);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kAtOnce = 1 << 14;
  absl::Status ReadPiece() {
    const int64_t count = std::min(kAtOnce, header_.num_documents - next_);
    piece_.resize(static_cast<size_t>(8 * count));
    read_to_ += count;
    return read_(header_.documents_at() + 8 * next_, absl::MakeSpan(piece_));
  }

  const TokenFileHeader& header_;
  const ReadTokenBytes read_;
  std::vector<char> piece_;
  int64_t next_ = 0, read_to_ = 0, before_ = -1;
};

// Of a file without a mask: whether one of the tokens [1, last] does not begin a document.  Mostly one of the first.
absl::StatusOr<bool> HasLaterToken(int64_t last, DocumentBegins* begins) {
  int64_t count = 0;
  for (int64_t end = 2;; end = std::min(2 * end, last + 1)) {
    RETURN_IF_ERROR(begins->Below(end, [&](int64_t begin) { count += begin > 0 ? 1 : 0; }));
    if (count < end - 1) return true;
    if (end == last + 1) return false;
  }
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
  AppendInt(uint64_t{header.masked} | uint64_t{header.pairs} << 1, &bytes);
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
  ASSIGN_OR_RETURN(const int64_t flags, (fields.TakeIn<int64_t>("mask and pairs", 0, 3)));
  header.masked = (flags & 1) != 0;
  header.pairs = (flags & 2) != 0;
  if (header.pairs && header.num_documents % 2 != 0) {
    return WrongFile(absl::StrCat("is of pairs, but has ", header.num_documents, " documents, an odd number"));
  }
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

TargetSearch TargetSearchOf(const JobSpec& spec) {
  return {.length = spec.packing == WindowPacking::kBestFit ? 1 : spec.sequence_length,
          .document_mask = spec.document_mask};
}

absl::StatusOr<bool> HasTarget(const TokenFileHeader& header, const TargetSearch& search, ReadTokenBytes read) {
  const int64_t last = (header.num_tokens - 1) / search.length * search.length;  // of the last whole window
  const bool borders = search.document_mask && header.num_documents > 0;
  if (last < 1) return false;
  DocumentBegins begins(header, read);
  if (!header.masked) return borders ? HasLaterToken(last, &begins) : true;
  const int64_t end = last / 8 + 1;  // of the mask's bytes
  std::vector<char> piece(static_cast<size_t>(std::min(kMaskPieceBytes, end)));
  for (int64_t begin = 0; begin < end; begin += kMaskPieceBytes) {
    const absl::Span<char> bytes =
        absl::MakeSpan(piece).subspan(0, static_cast<size_t>(std::min(kMaskPieceBytes, end - begin)));
    RETURN_IF_ERROR(read(header.mask_at() + begin, bytes));
    if (begin == 0) bytes[0] = static_cast<char>(bytes[0] & ~1);  // token 0 follows nothing
    if (borders) {
      RETURN_IF_ERROR(begins.Below(8 * (begin + static_cast<int64_t>(bytes.size())), [&](int64_t token) {
        char& byte = bytes[static_cast<size_t>(token / 8 - begin)];
        byte = static_cast<char>(byte & ~(1 << token % 8));
      }));
    }
    if (begin + kMaskPieceBytes >= end) bytes.back() = static_cast<char>(bytes.back() & (0xff >> (7 - last % 8)));
    if (std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; })) return true;
  }
  return false;
}

bool HasWindow(const JobSpec& spec, int64_t tokens, int64_t documents) {
  return spec.packing == WindowPacking::kBestFit ? tokens > documents : tokens > spec.sequence_length;
}

absl::Status NoWindowError(absl::string_view name, int64_t tokens, int64_t length) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " has a weight, but its ", tokens, " tokens fill no window of ", length));
}

absl::Status NoTargetError(size_t files, int64_t tokens, int64_t length) {
  return absl::InvalidArgumentError(absl::StrCat("none of the ", tokens, " tokens of ", files,
                                                 files == 1 ? " file" : " files", " is a target in a window of ",
                                                 length,
                                                 " tokens, at least 1 is wanted: use data whose mask marks what is "
                                                 "trained (`switchyard data pack` says how much)"));
}

}  // namespace switchyard::jobs
