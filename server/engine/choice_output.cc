#include "server/engine/choice_output.h"

#include <algorithm>
#include <utility>

namespace switchyard::server {

ChoiceOutput::ChoiceOutput(const InferenceRequest* request, const StopStrings* stops,
                           const tokenizer::Tokenizer* tokenizer)
    : request_(request), stops_(stops), matched_(stops->size(), 0) {
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
  if (stops_->empty() || !look_for_stops) return text;  // nothing is held before they count
  const size_t held = held_.size();
  held_ += text;
  size_t first = std::string::npos;
  for (size_t i = 0; i < stops_->size(); ++i) {
    const size_t end = stops_->Find(i, text, &matched_[i]);
    if (end == absl::string_view::npos) continue;
    const size_t at = held + end - stops_->stop(i).size();
    if (at < first) {
      first = at;
      stop_string_ = stops_->stop(i);
    }
  }
  if (first != std::string::npos) std::fill(matched_.begin(), matched_.end(), 0);
  const size_t keep = *std::max_element(matched_.begin(), matched_.end());
  std::string shown = held_.substr(0, std::min(first, held_.size() - keep));
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string ChoiceOutput::Flush() {
  std::string text = std::exchange(held_, "");
  if (decoder_ != nullptr && !stop_string_) (void)decoder_->Flush(&text);
  return text;
}

}  // namespace switchyard::server
