// JSONL to packed tokens, by the parts beside it (block_reader, document, document_encoder, encoder_pool,
// token_writer).
//
// The same inputs and tokenizer give the same bytes, whatever the threads; inputs follow each other, unshuffled.
// Memory: some blocks a thread, whatever the inputs' size.
#pragma once

#include <string>

#include "server/jobs/data_preparer.h"
#include "server/jobs/pack/document_encoder.h"
#include "server/text/chat_template/model_chat_template.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::server {

struct PackerOptions {
  std::string dataset_root = {};     // empty: this server has none
  std::string checkpoint_root = {};  // likewise
  // The served model's: TextProcessor's, which outlive the packer; null = it has none.
  const tokenizer::Tokenizer* tokenizer = nullptr;
  const text::ModelChatTemplate* chat_template = nullptr;
  std::string model = {};  // its folder
  int num_threads = 1;
  int64_t max_line_bytes = 16 << 20;
};

class Packer final : public DataPreparer {
 public:
  explicit Packer(PackerOptions options) : options_(std::move(options)) {}

  // Errors of a line: INVALID_ARGUMENT "FILE:LINE (byte BYTE): what", with these as metadata.
  absl::StatusOr<PackedData> Pack(const PackRequest& request,
                                  absl::FunctionRef<bool(int64_t, int64_t)> progress) override;

 private:
  absl::StatusOr<DocumentEncoder> Encoder(const std::string& folder) const;

  const PackerOptions options_;
};

}  // namespace switchyard::server
