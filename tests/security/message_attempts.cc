// Calls whose messages or deadlines are not what gRPC allows: lengths, compression, nesting.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/http2_frames.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

using http2::BigEndian;
using http2::Fields;

constexpr char kRefused[] = "ended|goaway|reset|^grpc-status ([1-9]|1[0-6])$";

std::function<std::string(AttackedServers&)> Body(std::string body, const Fields& more = {}) {
  Fields fields = http2::CallFields(kGenerateMethod);
  fields.insert(fields.end(), more.begin(), more.end());
  std::string bytes = http2::Preface() + http2::HeaderFrames(1, http2::HeaderBlock(fields));
  for (size_t at = 0; at == 0 || at < body.size(); at += http2::kMostFrameBytes) {
    const bool is_last = at + http2::kMostFrameBytes >= body.size();
    bytes += http2::Frame(http2::kData, is_last ? http2::kEndStream : 0, 1, body.substr(at, http2::kMostFrameBytes));
  }
  return [=](AttackedServers& servers) { return AfterFrames(servers.open()->address(), bytes); };
}
std::string Prefixed(bool compressed, uint32_t length, const std::string& bytes) {
  return std::string(1, compressed ? '\1' : '\0') + BigEndian(length, 4) + bytes;
}
std::string Good() { return http2::GrpcMessage(TextRequest("The", 2).SerializeAsString()); }

// A prompt of 40 MB that travels in 40 KB.
std::string CompressionBomb(AttackedServers& servers) {
  return InWords(RawCall(servers.open()->client().channel(), kGenerateMethod,
                         TextRequest(std::string(40 << 20, 'a'), 2).SerializeAsString(), absl::Seconds(60),
                         {.compress = true})
                     .status);
}
std::string Nested(int depth) {
  std::string bytes;
  for (int i = 0; i < depth; ++i) {
    std::string length;
    for (size_t left = bytes.size();; left >>= 7) {
      length += static_cast<char>(left < 128 ? left : 0x80 | (left & 0x7f));
      if (left < 128) break;
    }
    bytes = "\x0a" + length + bytes;
  }
  return bytes;
}
std::function<std::string(AttackedServers&)> Timeout(const char* value) {
  return Body(Good(), {{"grpc-timeout", value}});
}

// Messages by a client that keeps to the rules of the frames.
std::function<std::string(AttackedServers&)> Call(const char* method, std::string bytes, int times = 1) {
  return [=](AttackedServers& servers) {
    return InWords(RawCall(servers.open()->client().channel(), absl::StrCat("/switchyard.v1.InferenceService/", method),
                           bytes, absl::Seconds(60), {.times = times})
                       .status);
  };
}

}  // namespace

std::vector<Attempt> MessageAttempts() {
  return {
      {"LengthOf4Gigabytes", kRefused, Body(Prefixed(false, 0xffffffff, "x"))},
      {"LengthOf2Gigabytes", kRefused, Body(Prefixed(false, 0x80000000, "x"))},
      {"LengthBeyondTheEnd", kRefused, Body(Prefixed(false, 1000, "x"))},
      {"HalfAPrefix", kRefused, Body(std::string(3, '\0'))},
      {"NoMessage", kRefused, Body("")},
      {"ReservedFlags", kRefused, Body('\x80' + Good().substr(1))},
      {"CompressedByJunk", kRefused, Body('\1' + Good().substr(1), {{"grpc-encoding", "gzip"}})},
      {"CompressionBomb", "^RESOURCE_EXHAUSTED", CompressionBomb},
      {"TimeoutOf0", kRefused, Timeout("0S")},
      {"TimeoutOf10000Years", kRefused, Timeout("99999999H")},
      {"MessageAboveTheLimit", "^RESOURCE_EXHAUSTED", Call("Generate", std::string((4 << 20) + 1, 'x'))},
      {"TwoMessages", "^INVALID_ARGUMENT", Call("Generate", TextRequest("The", 900).SerializeAsString(), 2)},
      {"NestingOf1000", "^INVALID_ARGUMENT BAD_REQUEST_BYTES", Call("Generate", Nested(1000))},
      {"GroupsOf100000", "^INVALID_ARGUMENT BAD_REQUEST_BYTES", Call("Generate", std::string(100000, '\x0b'))},
      {"Junk", "^INVALID_ARGUMENT BAD_REQUEST_BYTES", Call("Tokenize", std::string(1000, '\xff'))},
      {"NestingInTheJson", "^INVALID_ARGUMENT",
       [](AttackedServers& servers) {
         v1::GenerateRequest request;
         auto* const message = request.mutable_messages()->add_messages();
         message->set_role("user");
         message->set_content("a");
         request.mutable_messages()->add_tools(std::string(100000, '['));
         return Call("Generate", request.SerializeAsString())(servers);
       }},
      {"AMegabyteOfOneLetter", "^(INVALID_ARGUMENT|RESOURCE_EXHAUSTED)",
       Call("Generate", TextRequest(std::string(1 << 20, 'a'), 2).SerializeAsString())},
      {"AskingForMoreThanTheContext", "^INVALID_ARGUMENT PROMPT_TOO_LONG",
       Call("Generate", TextRequest("The", 2147483647).SerializeAsString())},
  };
}

std::vector<Attempt> ToleratedMessages() {
  return {
      {"CompressedWithoutEncoding", "^grpc-status 0$", Body('\1' + Good().substr(1))},
      {"UnknownEncoding", "^grpc-status 0$", Body('\1' + Good().substr(1), {{"grpc-encoding", "lzma"}})},
      {"TimeoutWithoutUnit", "^grpc-status 0$", Timeout("5")},
      {"TimeoutOfLetters", "^grpc-status 0$", Timeout("soon")},
      {"TimeoutNegative", "^grpc-status 0$", Timeout("-1S")},
      {"TimeoutOfManyDigits", "^grpc-status 0$", Timeout("999999999999999999999S")},
  };
}

}  // namespace switchyard
