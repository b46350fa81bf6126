// Files of packed tokens for tests of calibration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::quantize {

// documents: where they begin; tokenizer: as in the header; trained: by token, empty: all are.
inline std::string TokenFileOf(const std::vector<int32_t>& tokens, int64_t vocab, uint64_t tokenizer = 0,
                               const std::vector<int64_t>& documents = {0}, const std::vector<bool>& trained = {}) {
  std::string body;
  const auto pad = [&] { body.resize((body.size() + jobs::kTokenHeaderBytes + 7) / 8 * 8 - jobs::kTokenHeaderBytes); };
  for (const int32_t token : tokens) AppendInt(static_cast<uint16_t>(token), &body);
  pad();
  if (!trained.empty()) {
    std::string mask((trained.size() + 7) / 8, '\0');
    for (size_t i = 0; i < trained.size(); ++i) {
      if (trained[i]) mask[i / 8] = static_cast<char>(mask[i / 8] | (1 << (i % 8)));
    }
    body += mask;
    pad();
  }
  for (const int64_t begin : documents) AppendInt(begin, &body);
  return jobs::EncodeTokenHeader({.token_bytes = 2,
                                  .vocab_size = vocab,
                                  .tokenizer = tokenizer,
                                  .num_tokens = static_cast<int64_t>(tokens.size()),
                                  .num_documents = static_cast<int64_t>(documents.size()),
                                  .masked = !trained.empty(),
                                  .contents = Fnv1a(body)}) +
         body;
}

}  // namespace switchyard::quantize
