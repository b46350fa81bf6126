// Packs JSONL files into a file of tokens, using block_reader, document, document_encoder, encoder_pool and
// token_writer.
//
// The same inputs and tokenizer give the same bytes for any number of threads; inputs follow each other, unshuffled.
// Memory: some blocks per thread, independent of the inputs' size.
#pragma once

#include <string>

#include "server/jobs/data_preparer.h"
#include "server/jobs/pack/block_reader.h"
#include "server/jobs/pack/document_encoder.h"
#include "server/text/chat_template/model_chat_template.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::server {

struct PackerOptions {
  std::string dataset_root = {};     // empty: this server has none
  std::string checkpoint_root = {};  // likewise
  // The served model's, owned by its TextProcessor and outliving the packer; null = the model has none.
  const tokenizer::Tokenizer* tokenizer = nullptr;
  const text::ModelChatTemplate* chat_template = nullptr;
  std::string model = {};  // its folder
  int num_threads = 1;
  int64_t max_line_bytes = kMaxLineBytes;
};

class Packer final : public DataPreparer {
 public:
  explicit Packer(PackerOptions options) : options_(std::move(options)) {}

  // An error in a line is INVALID_ARGUMENT "FILE:LINE (byte BYTE): what", with file, line and byte as metadata.
  absl::StatusOr<PackedData> Pack(const PackRequest& request,
                                  absl::FunctionRef<bool(int64_t, int64_t)> progress) override;

 private:
  absl::StatusOr<DocumentEncoder> Encoder(const std::string& folder) const;

  const PackerOptions options_;
};

}  // namespace switchyard::server
