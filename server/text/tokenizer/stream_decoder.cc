#include "server/text/tokenizer/stream_decoder.h"

#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/tokenizer.h"

namespace switchyard::tokenizer {
namespace {

// The end of the chain: collects text and ignores the ends of tokens.
class Outlet : public DecoderStage {
 public:
  explicit Outlet(std::string* out) : out_(out) {}
  absl::Status Text(absl::string_view text) override {
    out_->append(text.data(), text.size());
    return absl::OkStatus();
  }
  absl::Status EndToken() override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  std::string* const out_;
};

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      ready_(std::make_unique<std::string>()),
      chain_(tokenizer->decoder_(std::make_unique<Outlet>(ready_.get()))) {}

absl::Status StreamDecoder::Append(int32_t id, std::string* text) {
  const absl::string_view token = tokenizer_->SpellingOf(id);
  if (token.empty() || (skip_special_tokens_ && tokenizer_->added_.IsSkippable(id))) return absl::OkStatus();
  RETURN_IF_ERROR(chain_->Text(token));
  RETURN_IF_ERROR(chain_->EndToken());
  text->append(*ready_);
  ready_->clear();
  return absl::OkStatus();
}

absl::Status StreamDecoder::Flush(std::string* text) {
  RETURN_IF_ERROR(chain_->Finish());
  text->append(*ready_);
  ready_->clear();
  return absl::OkStatus();
}

}  // namespace switchyard::tokenizer
