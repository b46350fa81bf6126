// HTTP/2 frames as tests write them.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

inline const std::string kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
enum FrameKind : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kPriorityFrame = 2,
  kResetFrame = 3,
  kSettingsFrame = 4,
  kPingFrame = 6,
  kGoAwayFrame = 7,
  kWindowFrame = 8,
  kContinuationFrame = 9,
};
constexpr uint8_t kEndStreamFlag = 1, kAckFlag = 1, kEndHeadersFlag = 4;

inline std::string Frame(uint8_t kind, uint8_t flags, uint32_t stream, const std::string& payload = "") {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(kind);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}
// A message of gRPC with its prefix.
inline std::string Prefixed(const std::string& message) {
  std::string bytes(1, '\0');
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(message.size() >> shift);
  return bytes + message;
}

}  // namespace switchyard
