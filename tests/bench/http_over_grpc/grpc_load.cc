// The load over gRPC, by frames of HTTP/2: wide windows, so that none has to be widened, and uncompressed headers.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"
#include "tests/bench/http_over_grpc/load_client.h"
#include "tests/e2e/http2_frames.h"

namespace switchyard::bench {
namespace {

constexpr char kGenerate[] = "/switchyard.v1.InferenceService/Generate";
constexpr uint32_t kWideWindow = 0x7fffffff, kUsualWindow = 65535;
constexpr size_t kMessageHead = 5;  // whether it is compressed, its length
constexpr uint16_t kInitialWindow = 4;

uint32_t BigEndianAt(absl::string_view bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
  return value;
}

class GrpcLoad {
 public:
  GrpcLoad(const LoadKind& kind, const LoadSize& size, bool keeps_texts)
      : streams_(kind, size, keeps_texts),
        answers_(streams_.count()),
        links_(kind.connections == LoadConnections::kShared ? 1 : streams_.count()) {}

  absl::StatusOr<LoadResult> Run(const std::string& address, absl::Duration patience) {
    const std::string greeting =
        http2::Preface(http2::Setting(kInitialWindow, kWideWindow)) +
        http2::Frame(http2::kWindowUpdate, 0, 0, http2::BigEndian(kWideWindow - kUsualWindow, 4));
    for (size_t i = 0; i < links_.size(); ++i) {
      ASSIGN_OR_RETURN(links_[i].fd, ConnectTo(address));
      RETURN_IF_ERROR(SendAll(links_[i].fd.get(), greeting));
      RETURN_IF_ERROR(poll_.Add(links_[i].fd.get(), i));
    }
    // The channels stand before the first request.
    RETURN_IF_ERROR(poll_.Run(
        patience,
        [this] { return std::all_of(links_.begin(), links_.end(), [](const Link& link) { return link.is_open; }); },
        [this](size_t link, absl::string_view bytes, absl::Time now) { return Came(link, bytes, now); }));
    for (size_t i = 0; i < streams_.count(); ++i) RETURN_IF_ERROR(Begin(i));
    RETURN_IF_ERROR(poll_.Run(
        patience, [this] { return streams_.num_open() == 0; },
        [this](size_t link, absl::string_view bytes, absl::Time now) { return Came(link, bytes, now); }));
    return streams_.Finish();
  }

 private:
  struct Link {
    UniqueFd fd;
    std::string bytes;           // received, of a frame that is not whole
    std::vector<size_t> owners;  // the streams of calls 1, 3, 5 …
    bool is_open = false;        // its settings came
  };

  absl::Status Begin(size_t stream) {
    Link& link = links_[stream % links_.size()];
    const auto call = static_cast<uint32_t>(2 * link.owners.size() + 1);
    link.owners.push_back(stream);
    answers_[stream].clear();
    const std::string& message = streams_.Begin(stream);
    return SendAll(link.fd.get(), http2::CallHeaders(call, kGenerate) +
                                      http2::Frame(http2::kData, http2::kEndStream, call, http2::GrpcMessage(message)));
  }

  absl::Status Came(size_t number, absl::string_view bytes, absl::Time now) {
    Link& link = links_[number];
    if (bytes.empty()) return absl::UnavailableError("the server closed a connection");
    if (!link.bytes.empty()) {
      link.bytes.append(bytes.data(), bytes.size());
      bytes = link.bytes;
    }
    size_t at = 0;
    while (bytes.size() - at >= http2::kFrameHeaderBytes) {
      const size_t length = BigEndianAt(bytes, at, 3);
      if (bytes.size() - at < http2::kFrameHeaderBytes + length) break;
      RETURN_IF_ERROR(OnFrame(&link, bytes[at + 3], bytes[at + 4], BigEndianAt(bytes, at + 5, 4),
                              bytes.substr(at + http2::kFrameHeaderBytes, length), now));
      at += http2::kFrameHeaderBytes + length;
    }
    link.bytes = std::string(bytes.substr(at));
    return absl::OkStatus();
  }

  absl::Status OnFrame(Link* link, char type, char flags, uint32_t call, absl::string_view payload, absl::Time now) {
    switch (type) {
      case http2::kSettings:
        link->is_open = true;
        return (flags & http2::kAck) != 0 ? absl::OkStatus()
                                          : SendAll(link->fd.get(), http2::Frame(type, http2::kAck, 0, ""));
      case http2::kPing:
        return (flags & http2::kAck) != 0
                   ? absl::OkStatus()
                   : SendAll(link->fd.get(), http2::Frame(type, http2::kAck, 0, std::string(payload)));
      case http2::kReset:
      case http2::kGoAway:
        return absl::UnavailableError("the server reset a call or the connection");
      case http2::kData:
      case http2::kHeaders:
        break;
      default:
        return absl::OkStatus();
    }
    if (call % 2 == 0 || call / 2 >= link->owners.size()) return absl::InternalError("a frame of an unknown call");
    const size_t stream = link->owners[call / 2];
    if (type == http2::kData && !payload.empty()) {
      answers_[stream].append(payload.data(), payload.size());
      streams_.Arrived(stream, now);
    }
    return (flags & http2::kEndStream) != 0 ? OnEnd(stream, payload) : absl::OkStatus();
  }

  absl::Status OnEnd(size_t stream, absl::string_view trailers) {
    const std::string& answer = answers_[stream];
    std::string text;
    v1::GenerateResponse last;
    int64_t parts = 0;
    for (size_t at = 0; at + kMessageHead <= answer.size(); ++parts) {
      const size_t length = BigEndianAt(answer, at + 1, 4), begin = at + kMessageHead;
      at = begin + length;
      if (at > answer.size()) return absl::DataLossError("an answer ends within a message");
      if (at < answer.size() && !streams_.keeps_texts()) continue;
      if (!last.ParseFromArray(answer.data() + begin, static_cast<int>(length)))
        return absl::DataLossError("a message cannot be read");
      text += last.text();
    }
    if (!last.has_finish() || last.finish().reason() != v1::FINISH_REASON_LENGTH ||
        last.finish().usage().completion_tokens() != streams_.tokens_wanted(stream))
      return absl::DataLossError(
          absl::StrCat("an answer has another end: ", last.ShortDebugString(), " ", absl::CEscape(trailers)));
    streams_.Ended(stream, parts, std::move(text));
    return streams_.has_next(stream) ? Begin(stream) : absl::OkStatus();
  }

  LoadStreams streams_;
  std::vector<std::string> answers_;  // of each stream, what came of the one under way
  std::vector<Link> links_;
  LoadPoll poll_;
};

}  // namespace

absl::StatusOr<LoadResult> RunGrpcLoad(const std::string& address, const LoadKind& kind, const LoadSize& size,
                                       bool keeps_texts, absl::Duration patience) {
  return std::make_unique<GrpcLoad>(kind, size, keeps_texts)->Run(address, patience);
}

}  // namespace switchyard::bench
