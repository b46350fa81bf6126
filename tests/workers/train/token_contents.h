// Files of packed tokens for tests (scheduler/jobs/token_format.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::train {

struct TokenContents {
  int token_bytes = 2;
  std::vector<int32_t> tokens = {};
  std::vector<bool> trained = {};  // empty: all are
  std::vector<int64_t> documents = {0};
};

// The bytes of a file with these contents and a vocabulary of so many tokens.
inline std::string FileOf(const TokenContents& contents, int64_t vocab, bool pairs = false) {
  std::string body;
  const auto pad = [&] { body.resize((body.size() + jobs::kTokenHeaderBytes + 7) / 8 * 8 - jobs::kTokenHeaderBytes); };
  for (const int32_t token : contents.tokens) {
    contents.token_bytes == 2 ? AppendInt(static_cast<uint16_t>(token), &body) : AppendInt(token, &body);
  }
  pad();
  if (!contents.trained.empty()) {
    std::string mask((contents.trained.size() + 7) / 8, '\0');
    for (size_t i = 0; i < contents.trained.size(); ++i) {
      if (contents.trained[i]) mask[i / 8] = static_cast<char>(mask[i / 8] | (1 << (i % 8)));
    }
    body += mask;
    pad();
  }
  for (const int64_t begin : contents.documents) AppendInt(begin, &body);
  return jobs::EncodeTokenHeader({.token_bytes = contents.token_bytes,
                                  .vocab_size = vocab,
                                  .num_tokens = static_cast<int64_t>(contents.tokens.size()),
                                  .num_documents = static_cast<int64_t>(contents.documents.size()),
                                  .masked = !contents.trained.empty(),
                                  .pairs = pairs,
                                  .contents = Fnv1a(body)}) +
         body;
}

// The bytes of an llm.c file (GPT-2's tokenizer) with these tokens.
inline std::string LlmcFileOf(const std::vector<int32_t>& tokens) {
  std::string bytes;
  for (const int32_t value : {20240520, 1, static_cast<int32_t>(tokens.size())}) AppendInt(value, &bytes);
  bytes.resize(jobs::kLlmcHeaderBytes);
  for (const int32_t token : tokens) AppendInt(static_cast<uint16_t>(token), &bytes);
  return bytes;
}

}  // namespace switchyard::train
