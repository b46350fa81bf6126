// Text to token ids and back, at once and id by id as a stream shows them.
#include "server/text/tokenizer/tokenizer.h"

#include <iostream>
#include <string>

#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "server/text/tokenizer/stream_decoder.h"

using namespace switchyard::tokenizer;

int main() {
  const auto tokenizer = Tokenizer::FromFile("deploy/demo-model/tokenizer.json");
  SY_CHECK_OK(tokenizer.status());
  const std::string text = "The sea is naïve 🌊.";
  const auto ids = (*tokenizer)->Encode(text);
  SY_CHECK_OK(ids.status());
  std::cout << text << " → " << absl::StrJoin(*ids, " ") << "\n";
  const auto back = (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/true);
  SY_CHECK_OK(back.status());
  SY_CHECK_EQ(*back, text);

  // The wave has four bytes and, here, several tokens: a stream shows nothing until the character is whole.
  StreamDecoder decoder(tokenizer->get(), /*skip_special_tokens=*/true);
  std::string shown;
  int silent = 0;
  for (const int32_t id : *ids) {
    std::string part;
    SY_CHECK_OK(decoder.Append(id, &part));
    if (part.empty()) ++silent;
    shown += part;
    std::cout << "[" << part << "]";
  }
  SY_CHECK_OK(decoder.Flush(&shown));
  std::cout << "\n";
  SY_CHECK_EQ(shown, text);
  SY_CHECK_GT(silent, 0);
}
