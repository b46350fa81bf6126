// Any text through the demo model's tokenizer, which loses nothing: its ids are decoded to the text.
#include "server/text/tokenizer/stream_decoder.h"
#include "server/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {

void Fuzz(absl::string_view input) {
  static const auto* const tokenizer =
      new auto(tokenizer::Tokenizer::FromFile("deploy/demo-model/tokenizer.json").value());  // never destroyed
  if (const auto ids = (*tokenizer)->Encode(input); FindInvalidUtf8(input) != absl::string_view::npos) {
    SY_CHECK(ids.status().code() == absl::StatusCode::kInvalidArgument);
  }
  const std::string text = Utf8(input);
  for (const bool allow_special : {false, true}) {
    const auto ids = (*tokenizer)->Encode(text, {.add_special_tokens = false, .allow_special = allow_special});
    SY_CHECK_OK(ids.status());
    const auto decoded = (*tokenizer)->Decode(*ids, false);
    SY_CHECK_EQ(decoded.value(), text);
    tokenizer::StreamDecoder decoder(tokenizer->get(), false);
    std::string streamed, bytes;
    for (const int32_t id : *ids) {
      SY_CHECK_OK(decoder.Append(id, &streamed));
      SY_CHECK_EQ(FindInvalidUtf8(streamed), absl::string_view::npos);
      bytes += (*tokenizer)->PieceOf(id).bytes;
    }
    SY_CHECK_OK(decoder.Flush(&streamed));
    SY_CHECK_EQ(streamed, text);
    SY_CHECK_EQ(bytes, text);
  }
}

}  // namespace switchyard::fuzz
