#include "server/text/tokenizer/models/byte_level.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::tokenizer {
namespace {

constexpr char32_t kAlphabetEnd = 0x100 + 68;

struct Alphabet {
  std::array<std::string, 256> of_byte;
  std::array<int, kAlphabetEnd> byte_of;  // -1: none

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      AppendUtf8(c, &of_byte[byte]);
      byte_of[c] = byte;
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet* const alphabet =
      new Alphabet;  // never destroyed, since threads may use it until the process ends
  return *alphabet;
}

}  // namespace

void AppendByteLevel(absl::string_view bytes, std::string* out) {
  const Alphabet& alphabet = TheAlphabet();
  for (const char byte : bytes) out->append(alphabet.of_byte[static_cast<unsigned char>(byte)]);
}

void AppendByteLevelDecoded(absl::string_view token, std::string* out) {
  const Alphabet& alphabet = TheAlphabet();
  const size_t before = out->size();
  for (size_t pos = 0; pos < token.size();) {
    const char32_t c = DecodeUtf8(token, &pos);
    if (c >= kAlphabetEnd || alphabet.byte_of[c] < 0) {
      out->resize(before);
      out->append(token.data(), token.size());
      return;
    }
    out->push_back(static_cast<char>(alphabet.byte_of[c]));
  }
}

int ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (absl::ascii_isdigit(c)) return c - '0';
    return absl::ascii_isxdigit(c) ? absl::ascii_tolower(c) - 'a' + 10 : -1;
  };
  const int high = digit(token[3]);
  const int low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace switchyard::tokenizer
