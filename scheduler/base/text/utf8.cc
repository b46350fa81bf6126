#include "scheduler/base/text/utf8.h"

namespace switchyard {
namespace {

enum class Form { kWhole, kCut, kIll };

// Classifies the bytes at the front of `text`: a whole character of *length bytes; the beginning of one that the text's
// end cuts off after *length bytes; or ill-formed, with a maximal part of *length bytes (Unicode, table 3-7).
Form Classify(absl::string_view text, size_t* length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  *length = 1;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return Form::kWhole;
  if (lead < 0xC2 || lead > 0xF4) return Form::kIll;
  const size_t wanted = Utf8Length(text[0]);
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (; *length < wanted; ++*length) {
    if (*length == text.size()) return Form::kCut;
    if (byte(*length) < low || byte(*length) > high) return Form::kIll;
    low = 0x80;
    high = 0xBF;
  }
  return Form::kWhole;
}

}  // namespace

char32_t DecodeUtf8(absl::string_view text, size_t* pos) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[*pos + i])); };
  const char32_t lead = byte(0);
  char32_t code_point = lead;
  const size_t length = Utf8Length(text[*pos]);
  if (length == 2) {
    code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  } else if (length == 3) {
    code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  } else if (length == 4) {
    code_point = (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
  *pos += length;
  return code_point;
}

char32_t DecodeUtf8Before(absl::string_view text, size_t end, size_t* begin) {
  size_t pos = end - 1;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) --pos;
  *begin = pos;
  return DecodeUtf8(text, &pos);
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto put = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

size_t ValidLength(absl::string_view text) {
  size_t length = 0;
  return Classify(text, &length) == Form::kWhole ? length : 0;
}

size_t FindInvalidUtf8(absl::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    size_t length = 1;
    if (static_cast<unsigned char>(text[pos]) >= 0x80 && Classify(text.substr(pos), &length) != Form::kWhole)
      return pos;
    pos += length;
  }
  return absl::string_view::npos;
}

absl::string_view CutText(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

void LossyUtf8::Append(absl::string_view bytes, std::string* out) {
  std::string joined;
  if (!waiting_.empty()) {
    joined = waiting_;
    joined.append(bytes.data(), bytes.size());
    bytes = joined;
    waiting_.clear();
  }
  while (!bytes.empty()) {
    size_t length = 1;
    const Form form = Classify(bytes, &length);
    if (form == Form::kCut) {
      waiting_.assign(bytes.data(), bytes.size());
      return;
    }
    const absl::string_view part = form == Form::kWhole ? bytes.substr(0, length) : kReplacementCharacter;
    out->append(part.data(), part.size());
    bytes.remove_prefix(length);
  }
}

void LossyUtf8::Flush(std::string* out) {
  if (!waiting_.empty()) out->append(kReplacementCharacter.data(), kReplacementCharacter.size());
  waiting_.clear();
}

}  // namespace switchyard
