// The load over HTTP: answers as server-sent events in chunks.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "tests/bench/http_over_grpc/load_client.h"

namespace switchyard::bench {
namespace {

constexpr absl::string_view kLineEnd = "\r\n", kHeadEnd = "\r\n\r\n", kEventEnd = "\n\n", kDone = "data: [DONE]\n\n";

class HttpLoad {
 public:
  HttpLoad(const std::string& address, const LoadKind& kind, const LoadSize& size, bool keeps_texts)
      : address_(address),
        kind_(kind),
        path_(kind.api == LoadApi::kChat ? "/v1/chat/completions" : "/v1/completions"),
        streams_(kind, size, keeps_texts),
        links_(streams_.count()) {}

  absl::StatusOr<LoadResult> Run(absl::Duration patience) {
    if (kind_.connections == LoadConnections::kKept) {
      for (size_t i = 0; i < links_.size(); ++i) RETURN_IF_ERROR(Connect(i));
    }
    for (size_t i = 0; i < links_.size(); ++i) RETURN_IF_ERROR(Begin(i));
    RETURN_IF_ERROR(poll_.Run(
        patience, [this] { return streams_.num_open() == 0; },
        [this](size_t stream, absl::string_view bytes, absl::Time now) { return Came(stream, bytes, now); }));
    return streams_.Finish();
  }

 private:
  struct Link {
    UniqueFd fd;
    std::string bytes;   // received, not yet understood
    std::string events;  // of the answer under way
    bool has_head = false;
  };

  absl::Status Connect(size_t stream) {
    ASSIGN_OR_RETURN(links_[stream].fd, ConnectTo(address_));
    return poll_.Add(links_[stream].fd.get(), stream);
  }

  absl::Status Begin(size_t stream) {
    Link& link = links_[stream];
    const std::string& body = streams_.Begin(stream);
    const bool is_new = kind_.connections == LoadConnections::kNew;
    if (is_new) RETURN_IF_ERROR(Connect(stream));
    link.events.clear();
    link.bytes.clear();
    link.has_head = false;
    return SendAll(
        link.fd.get(),
        absl::StrCat("POST ", path_, " HTTP/1.1\r\nHost: ", address_, "\r\nContent-Type: application/json\r\n",
                     is_new ? "Connection: close\r\n" : "", "Content-Length: ", body.size(), kHeadEnd, body));
  }

  absl::Status Came(size_t stream, absl::string_view bytes, absl::Time now) {
    Link& link = links_[stream];
    if (bytes.empty()) return absl::UnavailableError("the server closed a connection");
    if (!link.bytes.empty()) {
      link.bytes.append(bytes.data(), bytes.size());
      bytes = link.bytes;
    }
    if (!link.has_head) {
      const size_t end = bytes.find(kHeadEnd);
      if (end == absl::string_view::npos) {
        link.bytes = std::string(bytes);
        return absl::OkStatus();
      }
      if (!absl::StartsWith(bytes, "HTTP/1.1 200"))
        return absl::UnavailableError(absl::StrCat("the server answers: ", bytes.substr(0, 400)));
      link.has_head = true;
      bytes.remove_prefix(end + kHeadEnd.size());
    }
    const size_t before = link.events.size();
    const bool is_last = Unchunk(&bytes, &link.events);
    if (link.events.size() > before) streams_.Arrived(stream, now);
    link.bytes = std::string(bytes);
    return is_last ? OnEnd(stream) : absl::OkStatus();
  }

  // Moves whole chunks from `bytes` to `events`; returns whether the last one came.
  static bool Unchunk(absl::string_view* bytes, std::string* events) {
    for (;;) {
      const size_t line = bytes->find(kLineEnd);
      if (line == absl::string_view::npos) return false;
      size_t length = 0;
      for (const char c : bytes->substr(0, line))
        length = length * 16 + static_cast<size_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
      const size_t whole = line + length + 2 * kLineEnd.size();
      if (bytes->size() < whole) return false;
      events->append(bytes->data() + line + kLineEnd.size(), length);
      bytes->remove_prefix(whole);
      if (length == 0) return true;
    }
  }

  absl::Status OnEnd(size_t stream) {
    Link& link = links_[stream];
    const absl::string_view events = link.events;
    const absl::string_view tail = events.substr(events.size() - std::min<size_t>(events.size(), 1000));
    if (!absl::EndsWith(events, kDone) || !absl::StrContains(tail, "\"finish_reason\":\"length\""))
      return absl::DataLossError(absl::StrCat("an answer has another end: ", tail));
    int64_t parts = -1;  // the last is none
    for (size_t at = 0; (at = events.find(kEventEnd, at)) != absl::string_view::npos; at += kEventEnd.size()) ++parts;
    streams_.Ended(stream, parts, streams_.keeps_texts() ? TextOf(events) : "");
    if (kind_.connections == LoadConnections::kNew) link.fd = UniqueFd();
    return streams_.has_next(stream) ? Begin(stream) : absl::OkStatus();
  }

  std::string TextOf(absl::string_view events) const {
    std::string text;
    for (absl::string_view event : absl::StrSplit(events, kEventEnd, absl::SkipEmpty())) {
      if (!absl::ConsumePrefix(&event, "data: ") || event == "[DONE]") continue;
      const auto json = nlohmann::json::parse(event);
      for (const auto& choice : json["choices"]) {
        text += kind_.api == LoadApi::kChat ? choice["delta"].value("content", "") : choice.value("text", "");
      }
    }
    return text;
  }

  const std::string address_;
  const LoadKind kind_;
  const std::string path_;
  LoadStreams streams_;
  std::vector<Link> links_;
  LoadPoll poll_;
};

}  // namespace

absl::StatusOr<LoadResult> RunHttpLoad(const std::string& address, const LoadKind& kind, const LoadSize& size,
                                       bool keeps_texts, absl::Duration patience) {
  return std::make_unique<HttpLoad>(address, kind, size, keeps_texts)->Run(patience);
}

}  // namespace switchyard::bench
