// What breaks HTTP/2 or gRPC's rules of it, byte by byte, on the port of clients.
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/e2e/http2_frames.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

using http2::BigEndian;
using http2::Fields;
using http2::Frame;
using http2::Preface;

constexpr char kIgnored[] = "^nothing$|ended|goaway|reset";
constexpr char kServed[] = "^grpc-status 0$";
constexpr char kRefused[] = "ended|goaway|reset|^grpc-status ([1-9]|1[0-6])$";

std::function<std::string(AttackedServers&)> Bytes(std::string bytes, bool answers = true) {
  return [=](AttackedServers& servers) { return AfterFrames(servers.open()->address(), bytes, answers); };
}
std::function<std::string(AttackedServers&)> AfterPreface(const std::string& frames) {
  return Bytes(Preface() + frames);
}

std::function<std::string(AttackedServers&)> Ignored(const std::string& frames) {
  return [bytes = Preface() + frames](AttackedServers& servers) {
    return AfterFrames(servers.open()->address(), bytes, true, absl::Seconds(1));
  };
}

std::string GoodMessage() { return http2::GrpcMessage(TextRequest("The", 2).SerializeAsString()); }

// A whole call with this block of headers: if it is not refused, it is served.
std::string CallOf(const std::string& block, const std::string& body = GoodMessage()) {
  return http2::HeaderFrames(1, block) + Frame(http2::kData, http2::kEndStream, 1, body);
}
std::function<std::string(AttackedServers&)> WithFields(const Fields& fields) {
  return AfterPreface(CallOf(http2::HeaderBlock(fields)));
}
std::function<std::string(AttackedServers&)> WithMore(const Fields& more) {
  Fields fields = http2::CallFields(kGenerateMethod);
  fields.insert(fields.end(), more.begin(), more.end());
  return WithFields(fields);
}
// The usual fields with another value of one; without it if `value` is null.
std::function<std::string(AttackedServers&)> WithOther(const std::string& name, const char* value) {
  Fields fields;
  for (auto& [key, usual] : http2::CallFields(kGenerateMethod)) {
    if (key != name) fields.emplace_back(key, usual);
    if (key == name && value != nullptr) fields.emplace_back(key, value);
  }
  return WithFields(fields);
}

// A large field in the table of HPACK, and then as many references to it as fit into a frame.
std::string HpackBomb() {
  const std::string value(4000, 'x');
  std::string block = http2::HeaderBlock(http2::CallFields(kGenerateMethod));
  block += std::string(1, '\x40') + http2::HpackLength(5) + "x-big" + http2::HpackLength(value.size()) + value;
  return block + std::string(12000, '\xbe');  // index 62, the newest
}
std::string Block() { return http2::HeaderBlock(http2::CallFields(kGenerateMethod)); }

std::vector<Attempt> Headers() {
  return {
      {"HeaderOf1Megabyte", kRefused, WithMore({{"x-large", std::string(1 << 20, 'x')}})},
      {"HeaderOf20Kilobytes", kRefused, WithMore({{"x-large", std::string(20000, 'x')}})},
      {"AThousandHeaders", kRefused, WithMore(Fields(1000, {"x-many", "value"}))},
      {"HpackBomb", kRefused, AfterPreface(CallOf(HpackBomb()))},
      {"HpackIndexOutOfRange", kRefused, AfterPreface(CallOf(Block() + '\xfe'))},
      {"HpackIndexZero", kRefused, AfterPreface(CallOf(Block() + '\x80'))},
      {"HpackLengthWithoutEnd", kRefused,
       AfterPreface(CallOf(Block() + std::string(1, '\0') + '\x7f' + std::string(20, '\xff')))},
      {"HpackTableTooLarge", kRefused, AfterPreface(CallOf("\x3f\xe1\xff\xff\x7f" + Block()))},
      {"MethodTwice", kRefused, WithMore({{":method", "GET"}})},
      {"NoPath", kRefused, WithOther(":path", nullptr)},
      {"EmptyPath", kRefused, WithOther(":path", "")},
      {"PathWithoutSlash", kRefused, WithOther(":path", "switchyard.v1.InferenceService/Generate")},
      {"PathWithDots", kRefused, WithOther(":path", "/x/../switchyard.v1.InferenceService/Generate")},
      {"PathEncoded", kRefused, WithOther(":path", "/switchyard.v1.InferenceService%2FGenerate")},
      {"PathWithQuery", kRefused, WithOther(":path", "/switchyard.v1.InferenceService/Generate?a=1")},
      {"PathOfAUrl", kRefused, WithOther(":path", "http://here/switchyard.v1.InferenceService/Generate")},
      {"MethodGet", kRefused, WithOther(":method", "GET")},
      {"MethodConnect", kRefused, WithOther(":method", "CONNECT")},
      {"NoMethod", kRefused, WithOther(":method", nullptr)},
      {"NoScheme", kRefused, WithOther(":scheme", nullptr)},
      {"SchemeFile", kRefused, WithOther(":scheme", "file")},
      {"UnknownPseudoHeader", kRefused, WithMore({{":protocol", "websocket"}})},
      {"UppercaseName", kRefused, WithMore({{"X-Upper", "1"}})},
      {"EmptyName", kRefused, WithMore({{"", "1"}})},
      {"NameWithSpace", kRefused, WithMore({{"x name", "1"}})},
      {"LineEndInValue", kRefused, WithMore({{"x-smuggle", "1\r\nauthorization: Bearer key-root"}})},
      {"LineEndInName", kRefused, WithMore({{"x-a\r\nx-b", "1"}})},
      {"NulInValue", kRefused, WithMore({{"x-nul", std::string("1\0002", 3)}})},
      {"TransferEncoding", kRefused, WithMore({{"transfer-encoding", "chunked"}})},
      {"LengthAndTransferEncoding", kRefused, WithMore({{"content-length", "3"}, {"transfer-encoding", "chunked"}})},
      {"TwoLengths", kRefused, WithMore({{"content-length", "3"}, {"content-length", "300"}})},
      {"ConnectionHeader", kRefused, WithMore({{"connection", "keep-alive"}})},
      {"UpgradeHeader", kRefused, WithMore({{"upgrade", "h2c"}})},
      {"ABrowsersPost", kRefused,
       WithFields({{":method", "POST"},
                   {":scheme", "http"},
                   {":path", kGenerateMethod},
                   {":authority", "here"},
                   {"origin", "http://elsewhere"},
                   {"content-type", "text/plain"}})},
      {"OtherTe", kRefused, WithOther("te", "gzip")},
  };
}

std::vector<Attempt> Frames() {
  const std::string open = http2::CallHeaders(1, kGenerateMethod);
  return {
      {"PaddingBeyondTheFrame", kRefused, AfterPreface(Frame(http2::kHeaders, 0x0d, 1, "\xff" + Block()))},
      {"AFrameOfMoreThanTheLimit", kRefused,
       AfterPreface(open + BigEndian(0xffffff, 3) + std::string(2, '\0') + BigEndian(1, 4) +
                    std::string(1 << 20, 'x'))},
      {"ContinuationOfNothing", kRefused, AfterPreface(Frame(http2::kContinuation, 4, 1, Block()))},
      {"ContinuationOfAnotherStream", kRefused,
       AfterPreface(Frame(http2::kHeaders, 0, 1, Block()) + Frame(http2::kContinuation, 4, 3, ""))},
      {"PingAmidHeaders", kRefused,
       AfterPreface(Frame(http2::kHeaders, 0, 1, Block()) + Frame(http2::kPing, 0, 0, "12345678"))},
      {"PingOf7Bytes", kRefused, AfterPreface(Frame(http2::kPing, 0, 0, "1234567"))},
      {"SettingsOf5Bytes", kRefused, AfterPreface(Frame(http2::kSettings, 0, 0, "12345"))},
      {"SettingsWithAWindowBeyond2Pow31", kRefused,
       AfterPreface(Frame(http2::kSettings, 0, 0, http2::Setting(4, 0x80000000)))},
      {"SettingsWithFramesOf1Byte", kRefused, AfterPreface(Frame(http2::kSettings, 0, 0, http2::Setting(5, 1)))},
      {"WindowUpdateOf0", kRefused, AfterPreface(Frame(http2::kWindowUpdate, 0, 0, BigEndian(0, 4)))},
      {"DataBeyondTheWindow", kRefused, AfterPreface([&open] {
         std::string frames = open;
         for (int i = 0; i < 600; ++i) frames += Frame(http2::kData, 0, 1, std::string(16384, '\0'));
         return frames;
       }())},
  };
}

// gRPC ignores these, or ends the connection.
std::vector<Attempt> IgnoredFrames() {
  const std::string open = http2::CallHeaders(1, kGenerateMethod);
  return {
      {"DataOnStream0", kIgnored, Ignored(Frame(http2::kData, 1, 0, "x"))},
      {"DataOnAnIdleStream", kIgnored, Ignored(Frame(http2::kData, 1, 5, GoodMessage()) + open)},
      {"HeadersOnStream0", kIgnored, Ignored(Frame(http2::kHeaders, 5, 0, Block()))},
      {"HeadersOnAnEvenStream", kIgnored, Ignored(Frame(http2::kHeaders, 5, 2, Block()))},
      {"StreamsThatGoBackwards", kIgnored,
       Ignored(http2::CallHeaders(9, kGenerateMethod) + http2::CallHeaders(3, kGenerateMethod))},
      {"PingOnAStream", kIgnored, Ignored(open + Frame(http2::kPing, 0, 1, "12345678"))},
      {"WindowBeyond2Pow31", kIgnored,
       Ignored(Frame(http2::kWindowUpdate, 0, 0, BigEndian(0x7fffffff, 4)) +
               Frame(http2::kWindowUpdate, 0, 0, BigEndian(0x7fffffff, 4)))},
      {"ResetOfAnIdleStream", kIgnored, Ignored(Frame(http2::kReset, 0, 7, BigEndian(8, 4)))},
      {"PushPromise", kIgnored, Ignored(Frame(http2::kPushPromise, 4, 1, BigEndian(2, 4) + Block()))},
  };
}

std::vector<Attempt> OtherProtocols() {
  return {
      {"Http11Get", kRefused, Bytes("GET / HTTP/1.1\r\nHost: here\r\n\r\n")},
      {"Http11Post", kRefused,
       Bytes("POST /switchyard.v1.InferenceService/Generate HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")},
      {"Http11Smuggling", kRefused,
       Bytes(
           "POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x")},
      {"UpgradeToH2c", kRefused,
       Bytes("GET / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
             "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")},
      {"Http09", kRefused, Bytes("GET /\r\n")},
      {"TlsHello", kRefused,
       Bytes(std::string("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", 11) + std::string(160, 'x'))},
      {"HalfAPreface", kRefused, Bytes("PRI * HTTP/2.0\r\n", false)},
      {"Silence", kRefused, Bytes("", false)},
      {"AWrongPreface", kRefused, Bytes("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n")},
      {"APrefaceWithoutSettings", kRefused, Bytes(http2::kPrefaceText + http2::CallHeaders(1, kGenerateMethod))},
      {"Junk", kRefused, Bytes(std::string(100000, '\xff'))},
  };
}

}  // namespace

std::vector<Attempt> FrameAttempts() {
  std::vector<Attempt> all = Headers();
  for (const std::vector<Attempt>& more : {Frames(), IgnoredFrames(), OtherProtocols()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<Attempt> ToleratedHeaders() {
  Fields late = {{"x-early", "1"}};
  for (const auto& field : http2::CallFields(kGenerateMethod)) late.push_back(field);
  return {
      {"PseudoHeadersAfterOthers", kServed, WithFields(late)},
      // The last one counts, and that service is at another port.
      {"PathTwice", "^grpc-status 12$", WithMore({{":path", "/switchyard.v1.AdminService/GetPlan"}})},
      {"StatusInARequest", kServed, WithMore({{":status", "200"}})},
      {"AuthorityTwice", kServed, WithMore({{":authority", "elsewhere"}})},
      {"AnotherHost", kServed, WithMore({{"host", "elsewhere"}})},
      {"OtherContentType", kServed, WithOther("content-type", "text/html")},
      {"LengthThatIsWrong", kServed, WithMore({{"content-length", "3"}})},
  };
}

}  // namespace switchyard
