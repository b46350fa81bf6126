// HTTP/2 frames as unit tests write them: tests/e2e/http2_frames.h, and messages of gRPC.
#pragma once

#include <cstdint>
#include <string>

#include "tests/e2e/http2_frames.h"

namespace switchyard {

inline const std::string kHttp2Preface = http2::kPrefaceText;
constexpr uint8_t kDataFrame = http2::kData, kHeadersFrame = http2::kHeaders, kPriorityFrame = http2::kPriority,
                  kResetFrame = http2::kReset, kSettingsFrame = http2::kSettings, kPingFrame = http2::kPing,
                  kGoAwayFrame = http2::kGoAway, kWindowFrame = http2::kWindowUpdate,
                  kContinuationFrame = http2::kContinuation;
constexpr uint8_t kEndStreamFlag = http2::kEndStream, kAckFlag = http2::kAck, kEndHeadersFlag = http2::kEndHeaders;

inline std::string Frame(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& payload = "") {
  return http2::Frame(static_cast<char>(kind), static_cast<char>(flags), stream, payload);
}
// A message of gRPC with its prefix.
inline std::string Prefixed(const std::string& message) {
  return std::string(1, '\0') + http2::BigEndian(message.size(), 4) + message;
}

}  // namespace switchyard
