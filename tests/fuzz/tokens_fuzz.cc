// Files of packed tokens, with the header's hash put right.  A header that is taken fits its file, and is written as
// the same bytes; HasTarget reads within the file and finds what a search of every bit finds.
#include <cstring>
#include <set>

#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/jobs/token_format.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

bool IsTarget(const jobs::TokenFileHeader& header, absl::string_view file, int64_t token) {
  return !header.masked || (file[static_cast<size_t>(header.mask_at() + token / 8)] >> (token % 8) & 1) != 0;
}

// Whether documents begin at rising tokens of the file, and where.
bool ReadBegins(const jobs::TokenFileHeader& header, absl::string_view file, std::set<int64_t>* begins) {
  for (int64_t d = 0, before = -1; d < header.num_documents; ++d) {
    const auto begin = LoadInt<int64_t>(file.data() + header.documents_at() + 8 * d);
    if (begin <= before || begin >= header.num_tokens) return false;
    begins->insert(before = begin);
  }
  return true;
}

void FuzzFile(absl::string_view file) {
  const auto size = static_cast<int64_t>(file.size());
  const auto header = jobs::DecodeTokenHeader(file.substr(0, jobs::kLlmcHeaderBytes), size);
  if (!header.ok()) return;
  SY_CHECK(header->num_tokens >= 1 && header->file_bytes() == size);
  if (header->header_bytes == jobs::kTokenHeaderBytes) {
    SY_CHECK(jobs::EncodeTokenHeader(*header) == file.substr(0, jobs::kTokenHeaderBytes));
  }
  const auto tokens = static_cast<size_t>(header->num_tokens * header->token_bytes);
  (void)jobs::CheckTokens(file.substr(static_cast<size_t>(header->tokens_at()), tokens), 0, header->token_bytes, 1000);
  const auto read = [&](int64_t begin, absl::Span<char> to) {
    SY_CHECK(begin >= 0 && begin + static_cast<int64_t>(to.size()) <= size);
    std::memcpy(to.data(), file.data() + begin, to.size());
    return absl::OkStatus();
  };
  std::set<int64_t> begins;
  const bool rises = ReadBegins(*header, file, &begins);
  for (const int64_t length : {int64_t{1}, int64_t{3}, int64_t{64}}) {
    bool found = false, within = false;  // within: but a document's first
    for (int64_t t = 1; t <= (header->num_tokens - 1) / length * length; ++t) {
      found |= IsTarget(*header, file, t);
      within |= IsTarget(*header, file, t) && !begins.contains(t);
    }
    const auto has_any = jobs::HasTarget(*header, {.length = length}, read);
    SY_CHECK_EQ(has_any.value(), found);
    const auto has_target = jobs::HasTarget(*header, {.length = length, .document_mask = true}, read);
    if (rises) SY_CHECK_EQ(has_target.value(), within);
  }
}

}  // namespace

void Fuzz(absl::string_view input) {
  FuzzFile(input);
  if (input.size() < jobs::kTokenHeaderBytes) return;
  std::string hash;
  AppendInt(Fnv1a(input.substr(0, 64)), &hash);
  FuzzFile(std::string(input).replace(64, 8, hash));
}

}  // namespace switchyard::fuzz
