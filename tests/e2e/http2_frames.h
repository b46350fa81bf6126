// Frames of HTTP/2 (RFC 9113) as a hostile client may write them: nothing is checked, nothing is compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::http2 {

enum FrameType : char {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr char kEndStream = 1, kAck = 1, kEndHeaders = 4;  // flags
inline constexpr size_t kFrameHeaderBytes = 9;
inline constexpr size_t kMostFrameBytes = 16384;  // of a payload, unless the peer allows more
inline constexpr char kPrefaceText[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// The lowest `bytes` bytes of `value`, big-endian.
inline std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
  return out;
}

inline std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  return BigEndian(payload.size(), 3) + type + flags + BigEndian(stream, 4) + payload;
}

// One setting: 4 is the initial window of streams, 3 the most streams.
inline std::string Setting(uint16_t id, uint32_t value) { return BigEndian(id, 2) + BigEndian(value, 4); }
inline std::string Preface(const std::string& settings = "") { return kPrefaceText + Frame(kSettings, 0, 0, settings); }

// HPACK (RFC 7541): a length, and a field as a literal without indexing, with a new name.
inline std::string HpackLength(size_t length) {
  if (length < 127) return std::string(1, static_cast<char>(length));
  std::string out(1, 127);
  for (length -= 127; length >= 128; length >>= 7) out += static_cast<char>(0x80 | (length & 0x7f));
  return out + static_cast<char>(length);
}
inline std::string HeaderField(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + HpackLength(name.size()) + name + HpackLength(value.size()) + value;
}

using Fields = std::vector<std::pair<std::string, std::string>>;
inline std::string HeaderBlock(const Fields& fields) {
  std::string block;
  for (const auto& [name, value] : fields) block += HeaderField(name, value);
  return block;
}
// What every gRPC call begins with.
inline Fields CallFields(const std::string& path) {
  return {{":method", "POST"},    {":scheme", "http"}, {":path", path},
          {":authority", "here"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
}

// HEADERS, and CONTINUATION frames if the block is long.
inline std::string HeaderFrames(uint32_t stream, const std::string& block, char flags = 0) {
  std::string frames;
  for (size_t at = 0; at == 0 || at < block.size(); at += kMostFrameBytes) {
    const bool is_last = at + kMostFrameBytes >= block.size();
    frames += Frame(at == 0 ? kHeaders : kContinuation,
                    static_cast<char>((at == 0 ? flags : 0) | (is_last ? kEndHeaders : 0)), stream,
                    block.substr(at, kMostFrameBytes));
  }
  return frames;
}
inline std::string CallHeaders(uint32_t stream, const std::string& path) {
  return HeaderFrames(stream, HeaderBlock(CallFields(path)));
}
inline std::string ResetFrame(uint32_t stream) { return Frame(kReset, 0, stream, BigEndian(8, 4)); }

// A message of gRPC: a byte that says whether it is compressed, its length, its bytes.
inline std::string GrpcMessage(const std::string& bytes) {
  return std::string(1, '\0') + BigEndian(bytes.size(), 4) + bytes;
}

}  // namespace switchyard::http2
