// A collector for tests: takes OTLP/HTTP posts on loopback, answers as a test sets, and checks each body by what the
// specification says of OTLP's JSON.  One connection at a time, one post on each.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace switchyard::server {

// A span, with its attributes as text: of whole numbers their digits, of lists their elements with commas.
struct SpanSeen {
  std::string trace_id, span_id, parent_span_id, name, state;
  int kind = 0, status = 0;
  int64_t start_nanos = 0, end_nanos = 0;
  std::map<std::string, std::string> attributes;
};

// Reads a body and checks it: ids in hex of their lengths, times as strings of digits, enumerations as numbers, each
// attribute with one value.
class OtlpBodyReader {
 public:
  using Json = nlohmann::json;
  static std::vector<SpanSeen> Read(const std::string& body, std::map<std::string, std::string>* resource) {
    std::vector<SpanSeen> spans;
    const Json message = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(message.is_object()) << body;
    if (!message.is_object()) return spans;
    for (const Json& of_resource : message.at("resourceSpans")) {
      *resource = Attributes(of_resource.at("resource").at("attributes"));
      for (const Json& of_scope : of_resource.at("scopeSpans")) {
        EXPECT_TRUE(of_scope.at("scope").at("name").is_string());
        for (const Json& span : of_scope.at("spans")) spans.push_back(ReadSpan(span));
      }
    }
    return spans;
  }

 private:
  static bool IsHex(const std::string& text, size_t digits) {
    const bool hex = std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
    return hex && text.size() == digits && text.find_first_not_of('0') != std::string::npos;
  }
  static int64_t Nanos(const Json& value) {
    int64_t nanos = 0;
    EXPECT_TRUE(value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &nanos)) << value;
    return nanos;
  }
  static std::string Value(const Json& value) {
    EXPECT_EQ(value.size(), 1u) << value << ": one of its kinds";
    const std::string kind = value.begin().key();
    const Json& is = value.begin().value();
    if (kind == "stringValue") return is.get<std::string>();
    if (kind == "doubleValue") {
      EXPECT_TRUE(is.is_number()) << value;
      return absl::StrCat(is.get<double>());
    }
    if (kind == "intValue") return absl::StrCat(Nanos(is));
    if (kind == "arrayValue") {
      std::string all;
      for (const Json& element : is.at("values")) absl::StrAppend(&all, all.empty() ? "" : ",", Value(element));
      return all;
    }
    ADD_FAILURE() << value << ": no kind of OTLP's that the server uses";
    return "";
  }
  static std::map<std::string, std::string> Attributes(const Json& list) {
    std::map<std::string, std::string> attributes;
    for (const Json& one : list) {
      EXPECT_TRUE(attributes.emplace(one.at("key").get<std::string>(), Value(one.at("value"))).second) << one;
    }
    return attributes;
  }
  static SpanSeen ReadSpan(const Json& span) {
    SpanSeen seen;
    seen.trace_id = span.at("traceId");
    seen.span_id = span.at("spanId");
    seen.parent_span_id = span.value("parentSpanId", "");
    seen.state = span.value("traceState", "");
    seen.name = span.at("name");
    EXPECT_TRUE(IsHex(seen.trace_id, 32)) << span;
    EXPECT_TRUE(IsHex(seen.span_id, 16)) << span;
    EXPECT_TRUE(seen.parent_span_id.empty() || IsHex(seen.parent_span_id, 16)) << span;
    EXPECT_TRUE(span.at("kind").is_number_integer()) << span;
    EXPECT_TRUE(span.at("flags").is_number_unsigned()) << span;
    seen.kind = span.at("kind");
    seen.start_nanos = Nanos(span.at("startTimeUnixNano"));
    seen.end_nanos = Nanos(span.at("endTimeUnixNano"));
    EXPECT_LE(seen.start_nanos, seen.end_nanos) << span;
    seen.attributes = Attributes(span.at("attributes"));
    if (span.contains("status") && span["status"].contains("code")) {
      EXPECT_TRUE(span["status"]["code"].is_number_integer());
      seen.status = span["status"]["code"];
    }
    return seen;
  }
};

class OtlpReceiver {
 public:
  struct Answer {
    int status = 200;
    std::string body = "{}";
    std::string headers = {};  // further lines, each with its end
  };

  OtlpReceiver() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OtlpReceiver() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string endpoint() const { return absl::StrCat("http://127.0.0.1:", port_); }
  // Answers the next posts so; after these, with 200.
  void AnswerNext(std::vector<Answer> answers) {
    absl::MutexLock lock(&mu_);
    answers_.assign(answers.begin(), answers.end());
  }
  // Waits until `wanted(spans)` is true; false after a minute.
  template <class WantedFn>
  bool Wait(WantedFn wanted) {
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return wanted(spans_); };
    return mu_.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(60));
  }
  bool WaitPosts(int count) {
    absl::MutexLock lock(&mu_);
    const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return posts_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(60));
  }
  std::vector<SpanSeen> spans() {  // of posts that were answered with 200
    absl::MutexLock lock(&mu_);
    return spans_;
  }
  std::map<std::string, std::string> resource() {
    absl::MutexLock lock(&mu_);
    return resource_;
  }
  int posts() {
    absl::MutexLock lock(&mu_);
    return posts_;
  }

 private:
  void Serve() {
    for (;;) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      timeval limit = {.tv_sec = 30, .tv_usec = 0};
      setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      ServeOne(connection);
      close(connection);
    }
  }
  void ServeOne(int connection) {
    std::string bytes;
    size_t head = std::string::npos, length = 0;
    while (head == std::string::npos || bytes.size() < head + 4 + length) {
      char buffer[16384];
      const ssize_t count = recv(connection, buffer, sizeof(buffer), 0);
      if (count <= 0) return;
      bytes.append(buffer, static_cast<size_t>(count));
      if (head != std::string::npos) continue;
      head = bytes.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      const std::string fields = absl::AsciiStrToLower(bytes.substr(0, head + 2));
      EXPECT_TRUE(absl::StartsWith(bytes, "POST /v1/traces HTTP/1.1\r\n")) << bytes;
      EXPECT_TRUE(absl::StrContains(fields, "\r\ncontent-type: application/json\r\n")) << fields;
      const size_t at = fields.find("\r\ncontent-length: ");
      ASSERT_NE(at, std::string::npos) << fields;
      ASSERT_TRUE(absl::SimpleAtoi(fields.substr(at + 18, fields.find('\r', at + 2) - at - 18), &length));
    }
    Answer answer;
    {
      absl::MutexLock lock(&mu_);
      if (!answers_.empty()) {
        answer = answers_.front();
        answers_.pop_front();
      }
      const std::vector<SpanSeen> spans = OtlpBodyReader::Read(bytes.substr(head + 4), &resource_);
      if (answer.status == 200) spans_.insert(spans_.end(), spans.begin(), spans.end());
      ++posts_;
    }
    const std::string reply =
        absl::StrCat("HTTP/1.1 ", answer.status, " X\r\nContent-Type: application/json\r\nConnection: close\r\n",
                     answer.headers, "Content-Length: ", answer.body.size(), "\r\n\r\n", answer.body);
    EXPECT_EQ(send(connection, reply.data(), reply.size(), MSG_NOSIGNAL), static_cast<ssize_t>(reply.size()));
  }

  int listener_ = -1, port_ = 0;
  absl::Mutex mu_;
  std::deque<Answer> answers_ ABSL_GUARDED_BY(mu_);
  std::vector<SpanSeen> spans_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> resource_ ABSL_GUARDED_BY(mu_);
  int posts_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace switchyard::server
