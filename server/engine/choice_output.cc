#include "server/engine/choice_output.h"

#include <algorithm>
#include <utility>

namespace switchyard::server {

size_t StopPrefixLength(absl::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t length = std::min(text.size(), stop.size() - 1); length > longest; --length) {
      if (text.substr(text.size() - length) == absl::string_view(stop).substr(0, length)) {
        longest = length;
        break;
      }
    }
  }
  return longest;
}

ChoiceOutput::ChoiceOutput(const InferenceRequest* request, const tokenizer::Tokenizer* tokenizer) : request_(request) {
  if (tokenizer != nullptr)
    decoder_ = std::make_unique<tokenizer::StreamDecoder>(tokenizer, request->skip_special_tokens);
}

std::string ChoiceOutput::Take(int32_t token, int32_t index) {
  const std::vector<int32_t>& stop_ids = request_->sampling.stop_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
    stop_token_ = token;  // ends the choice; its text is not shown
    return "";
  }
  if (decoder_ == nullptr) return "";
  std::string text;
  // A decoder that fails (a regex of its file hit its limit) shows nothing more; the token ids still go out.
  if (!decoder_->Append(token, &text).ok()) decoder_ = nullptr;
  // As stop ids, stop strings count from min_tokens on.
  return Show(std::move(text), index + 1 >= request_->sampling.min_tokens);
}

std::string ChoiceOutput::Show(std::string text, bool look_for_stops) {
  if (request_->stop.empty()) return text;
  held_ += text;
  if (!look_for_stops) return std::exchange(held_, "");
  size_t first = std::string::npos;
  for (const std::string& stop : request_->stop) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      stop_string_ = stop;
    }
  }
  if (first != std::string::npos) {
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  const size_t keep = StopPrefixLength(held_, request_->stop);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string ChoiceOutput::Flush() {
  std::string text = std::exchange(held_, "");
  if (decoder_ != nullptr && !stop_string_) (void)decoder_->Flush(&text);
  return text;
}

}  // namespace switchyard::server
