#include "server/text/tokenizer/stages/decoder_stages.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "server/text/tokenizer/models/byte_level.h"

namespace switchyard::tokenizer {
int ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (absl::ascii_isdigit(c)) return c - '0';
    return absl::ascii_isxdigit(c) ? absl::ascii_tolower(c) - 'a' + 10 : -1;
  };
  const int high = digit(token[3]);
  const int low = digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

absl::Status FuseStage::Finish() {
  RETURN_IF_ERROR(next().EndToken());
  return next().Finish();
}

absl::Status ByteLevelStage::Token(std::string token, size_t) {
  std::string bytes;
  AppendByteLevelDecoded(token, &bytes);
  std::string text;
  utf8_.Append(bytes, &text);
  return text.empty() ? absl::OkStatus() : next().Text(text);
}

absl::Status ByteLevelStage::Finish() {
  std::string text;
  utf8_.Flush(&text);
  RETURN_IF_ERROR(Emit(text));
  return next().Finish();
}

absl::Status ByteFallbackStage::Token(std::string token, size_t) {
  if (const int byte = ByteOfToken(token); byte >= 0) {
    run_.push_back(static_cast<char>(byte));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(EmitRun());
  return Emit(token);
}

absl::Status ByteFallbackStage::EmitRun() {
  if (run_.empty()) return absl::OkStatus();
  std::string run;
  run.swap(run_);
  if (FindInvalidUtf8(run) == absl::string_view::npos) return Emit(run);
  for (size_t i = 0; i < run.size(); ++i) RETURN_IF_ERROR(Emit(kReplacementCharacter));
  return absl::OkStatus();
}

absl::Status ByteFallbackStage::Finish() {
  RETURN_IF_ERROR(EmitRun());
  return next().Finish();
}

absl::Status ReplaceLiteralStage::Text(absl::string_view text) {
  held_.append(text.data(), text.size());
  std::string out;
  size_t done = 0;
  for (size_t at = held_.find(literal_.data(), 0, literal_.size()); at != std::string::npos;
       at = held_.find(literal_.data(), done, literal_.size())) {
    out.append(held_, done, at - done);
    out.append(content_.data(), content_.size());
    done = at + literal_.size();
  }
  // The longest tail that is a proper beginning of the literal stays: at most its size less one byte.
  size_t keep = std::min(held_.size() - done, literal_.size() - 1);
  while (keep > 0 && !absl::StartsWith(literal_, absl::string_view(held_).substr(held_.size() - keep))) --keep;
  out.append(held_, done, held_.size() - keep - done);
  held_.erase(0, held_.size() - keep);
  return out.empty() ? absl::OkStatus() : next().Text(out);
}

absl::Status ReplaceLiteralStage::EndToken() {
  std::string held;
  held.swap(held_);
  if (!held.empty()) RETURN_IF_ERROR(next().Text(held));
  return next().EndToken();
}

absl::Status StripStage::Text(absl::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = DecodeUtf8(text, &pos);
    const bool strippable = c == options_.content;
    if (!started_ && strippable && cut_ < options_.start) {
      ++cut_;
      continue;
    }
    started_ = true;
    if (strippable && options_.stop > 0) {
      // The last `stop` of a run may be the token's end; the ones before are not.
      if (++num_held_ > options_.stop) {
        AppendUtf8(c, &out);
        --num_held_;
      }
      continue;
    }
    for (; num_held_ > 0; --num_held_) AppendUtf8(options_.content, &out);
    AppendUtf8(c, &out);
  }
  return out.empty() ? absl::OkStatus() : next().Text(out);
}

absl::Status StripStage::EndToken() {
  cut_ = 0;
  started_ = false;
  num_held_ = 0;
  return next().EndToken();
}

}  // namespace switchyard::tokenizer
