#include "tests/bench/http_over_grpc/load_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/status_macros.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::bench {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr int kMostEvents = 64;

}  // namespace

LoadRequest RequestOf(const LoadSize& size, int stream, int request) {
  static const char* const kPrompts[] = {
      "In the beginning there was",    "Write down the sum of three and four, and then",
      "The sea is wide and",           "He said that the king of the country",
      "Once upon a time a small girl", "Take two eggs, a cup of flour and"};
  const int number = stream * 7 + request * 5;
  // Lengths differ, so that streams end one by one and new requests come beside running ones.
  const int step = number % 11;  // 0 … 10
  return {.prompt = absl::StrCat(kPrompts[number % 6], " number ", number % 13),
          .tokens = size.tokens / 2 + size.tokens * step / 10};
}

std::string BodyOf(const LoadKind& kind, const LoadRequest& request) {
  if (kind.protocol == LoadProtocol::kGrpc) {
    v1::GenerateRequest message;
    if (kind.api == LoadApi::kCompletions) {
      message.set_text(request.prompt);
    } else {
      v1::ChatMessage* const turn = message.mutable_messages()->add_messages();
      turn->set_role("user");
      turn->set_content(request.prompt);
    }
    message.set_max_tokens(request.tokens);
    message.set_ignore_eos(true);
    message.mutable_sampling()->set_temperature(0);
    return message.SerializeAsString();
  }
  nlohmann::json body = {{"max_tokens", request.tokens}, {"ignore_eos", true}, {"temperature", 0}, {"stream", true}};
  if (kind.api == LoadApi::kCompletions) {
    body["prompt"] = request.prompt;
  } else {
    body["messages"] = {{{"role", "user"}, {"content", request.prompt}}};
  }
  return body.dump();
}

absl::StatusOr<UniqueFd> ConnectTo(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) != 1)
    return absl::InvalidArgumentError(absl::StrCat("not IPV4:PORT: ", address));
  to.sin_port = htons(static_cast<uint16_t>(port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  if (fd.get() < 0 || connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0)
    return absl::UnavailableError(absl::StrCat("connecting to ", address, ": ", std::strerror(errno)));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

absl::Status SendAll(int fd, absl::string_view bytes) {
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("sent ", sent, " of ", bytes.size(), " bytes"));
}

double OwnCpuSeconds() {
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

LoadStreams::LoadStreams(const LoadKind& kind, const LoadSize& size, bool keeps_texts)
    : size_(size), keeps_texts_(keeps_texts), streams_(static_cast<size_t>(size.streams)) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    for (int request = 0; request < size.requests; ++request)
      streams_[i].bodies.push_back(BodyOf(kind, RequestOf(size, static_cast<int>(i), request)));
  }
  if (keeps_texts) result_.texts.resize(streams_.size() * static_cast<size_t>(size.requests));
}

const std::string& LoadStreams::Begin(size_t stream) {
  Stream& own = streams_[stream];
  if (begin_ == absl::InfiniteFuture()) {
    cpu_begin_ = OwnCpuSeconds();
    begin_ = absl::Now();
  }
  own.tokens = RequestOf(size_, static_cast<int>(stream), own.next).tokens;
  own.has_some = false;
  ++num_open_;
  own.begin = absl::Now();
  return own.bodies[static_cast<size_t>(own.next++)];
}

void LoadStreams::Arrived(size_t stream, absl::Time now) {
  Stream& own = streams_[stream];
  const double ms = absl::ToDoubleMilliseconds(now - (own.has_some ? own.last : own.begin));
  (own.has_some ? result_.gap_ms : result_.first_ms).push_back(ms);
  own.has_some = true;
  own.last = now;
}

void LoadStreams::Ended(size_t stream, int64_t parts, std::string text) {
  const Stream& own = streams_[stream];
  result_.tokens += own.tokens;
  result_.parts += parts;
  if (keeps_texts_) {
    const size_t at = stream * static_cast<size_t>(size_.requests) + static_cast<size_t>(own.next - 1);
    result_.texts[at] = std::move(text);
  }
  --num_open_;
}

LoadResult LoadStreams::Finish() {
  result_.seconds = absl::ToDoubleSeconds(absl::Now() - begin_);
  result_.client_cpu_seconds = OwnCpuSeconds() - cpu_begin_;
  return std::move(result_);
}

LoadPoll::LoadPoll() : epoll_(epoll_create1(EPOLL_CLOEXEC)), buffer_(kReadBytes, '\0') {}

absl::Status LoadPoll::Add(int fd, size_t number) {
  if (fds_.size() <= number) fds_.resize(number + 1, -1);
  fds_[number] = fd;
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = number}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

absl::Status LoadPoll::Run(absl::Duration patience, absl::FunctionRef<bool()> is_over,
                           absl::FunctionRef<absl::Status(size_t, absl::string_view, absl::Time)> came) {
  epoll_event events[kMostEvents];
  while (!is_over()) {
    const int count =
        epoll_wait(epoll_.get(), events, kMostEvents, static_cast<int>(absl::ToInt64Milliseconds(patience)));
    if (count == 0)
      return absl::DeadlineExceededError(absl::StrCat("nothing came for ", absl::FormatDuration(patience)));
    for (int i = 0; i < count; ++i) {
      const auto number = static_cast<size_t>(events[i].data.u64);
      const ssize_t got = recv(fds_[number], buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got < 0) return absl::UnavailableError(absl::StrCat("recv: ", std::strerror(errno)));
      RETURN_IF_ERROR(came(number, absl::string_view(buffer_.data(), static_cast<size_t>(got)), absl::Now()));
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::bench
