// A tokenizer.json and, behind a NUL, a text for it.  Its ids are in range, the same each time, and are decoded to the
// same text as a whole and as a stream.
#include "server/text/tokenizer/stream_decoder.h"
#include "server/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

std::string Streamed(const tokenizer::Tokenizer& tokenizer, const std::vector<int32_t>& ids, absl::Status* status) {
  tokenizer::StreamDecoder decoder(&tokenizer, false);
  std::string text;
  for (const int32_t id : ids) status->Update(decoder.Append(id, &text));
  status->Update(decoder.Flush(&text));
  return text;
}

}  // namespace

void Fuzz(absl::string_view input) {
  const auto [json, rest] = CutAtNul(input);
  const auto tokenizer = tokenizer::Tokenizer::FromJson(json);
  SY_CHECK_EQ(tokenizer.status().ToString(), tokenizer::Tokenizer::FromJson(json).status().ToString());
  if (!tokenizer.ok()) return;
  const std::string text = Utf8(rest);
  const auto ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) return;
  SY_CHECK(*(*tokenizer)->Encode(text) == *ids);
  for (const int32_t id : *ids) {
    SY_CHECK(id >= 0 && id < (*tokenizer)->id_end());
    SY_CHECK_EQ(FindInvalidUtf8((*tokenizer)->PieceOf(id).text), absl::string_view::npos);
  }
  absl::Status status;
  const std::string streamed = Streamed(**tokenizer, *ids, &status);
  const auto decoded = (*tokenizer)->Decode(*ids, false);
  SY_CHECK_EQ(decoded.ok(), status.ok());
  if (!decoded.ok()) return;
  SY_CHECK_EQ(*decoded, streamed);
  SY_CHECK_EQ(FindInvalidUtf8(*decoded), absl::string_view::npos);
}

}  // namespace switchyard::fuzz
