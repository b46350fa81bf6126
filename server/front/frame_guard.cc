#include "server/front/frame_guard.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace switchyard::server {
namespace {

constexpr absl::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHeadBytes = 9;
enum FrameType : uint8_t { kData, kHeaders, kPriority, kReset, kSettings, kPush, kPing, kGoAway, kWindow, kContinue };
constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
constexpr int kPrefixBytes = 5;  // of a message of gRPC: a flag and four bytes of size
constexpr double kResetWindowSeconds = 10, kForgivenByAnAnswer = 10;
// A connection that waits goes on when so many are allowed at once, so that it does not wake for each.
constexpr int kStreamsAtOnce = 20, kFramesAtOnce = 200;
// How long ahead calls may be reserved, a little more than requests of HTTP, whose floods then leave them a turn; and
// when to look again where that is too long.
constexpr absl::Duration kMostAhead = absl::Seconds(3), kLookAgain = absl::Milliseconds(100);
constexpr double kUpdatesForAFrame = 4, kUpdatesForAStream = 2;

constexpr absl::string_view kLimitNames[] = {
    "preface", "frame_size", "header_bytes",   "continuations", "sequence", "open_streams", "resets",
    "pings",   "settings",   "window_updates", "other_frames",  "unread",   "handshake",    "memory",
};
static_assert(std::size(kLimitNames) == static_cast<size_t>(FrontLimit::kNumLimits));

}  // namespace

absl::string_view NameOf(FrontLimit limit) { return kLimitNames[static_cast<size_t>(limit)]; }

std::string FrontViolation::ToString() const {
  if (limit == FrontLimit::kPreface) return "preface: not that of HTTP/2";
  return absl::StrCat(NameOf(limit), ": limit ", allowed, ", actual ", actual);
}

std::string GoAway(uint32_t last_stream, absl::string_view why) {
  constexpr char kEnhanceYourCalm = 11;
  const auto size = static_cast<uint32_t>(8 + why.size());
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(size >> shift);
  frame += std::string({kGoAway, 0, 0, 0, 0, 0});
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(last_stream >> shift);
  frame += std::string({0, 0, 0, kEnhanceYourCalm});
  return frame.append(why.data(), why.size());
}

FrameGuard::FrameGuard(const Limits& limits, absl::Time now, double part, std::shared_ptr<SharedRate> client_calls)
    : limits_(limits),
      most_resets_(static_cast<int64_t>(static_cast<double>(limits.resets) * part)),
      resets_at_(now),
      client_calls_(std::move(client_calls)),
      stream_rate_(limits.streams_a_second, limits.stream_burst, now),
      frame_rate_(limits.frames_a_second, limits.frame_burst, now),
      pings_(limits.pings_a_second, limits.ping_burst, now),
      settings_(limits.settings_a_second, limits.settings_burst, now),
      window_updates_(limits.window_updates_a_second, limits.window_update_burst, now),
      others_(limits.other_frames_a_second, limits.other_frame_burst, now) {}

FrameGuard::FrameHead FrameGuard::Parse(const unsigned char* bytes) {
  return {.length = int64_t{bytes[0]} << 16 | bytes[1] << 8 | bytes[2],
          .type = bytes[3],
          .flags = bytes[4],
          .stream =
              (uint32_t{bytes[5]} << 24 | uint32_t{bytes[6]} << 16 | uint32_t{bytes[7]} << 8 | bytes[8]) & 0x7fffffff};
}

void FrameGuard::Violate(FrontLimit limit, int64_t allowed, int64_t actual) {
  violation_ = FrontViolation{.limit = limit, .allowed = allowed, .actual = actual};
}

size_t FrameGuard::FromClient(absl::string_view bytes, absl::Time now) {
  size_t at = 0;
  waits_until_ = absl::InfinitePast();
  wants_room_ = false;
  if (violation_.has_value()) return 0;
  if (!begun_) {
    const size_t known = std::min(bytes.size(), kClientPreface.size());
    if (bytes.substr(0, known) != kClientPreface.substr(0, known)) {
      Violate(FrontLimit::kPreface, 0, 0);
      return 0;
    }
    if (known < kClientPreface.size()) return 0;
    begun_ = true;
    at = known;
  }
  for (;;) {
    const auto passing = static_cast<size_t>(std::min<int64_t>(frame_left_, static_cast<int64_t>(bytes.size() - at)));
    if (passing > 0 && frame_.type == kData) CountData(bytes.substr(at, passing));
    frame_left_ -= static_cast<int64_t>(passing);
    at += passing;
    if (frame_left_ > 0 || bytes.size() - at < kHeadBytes) return at;
    if (limits_.acknowledges && has_set_ && !is_acknowledged_) return at;
    const FrameHead head = Parse(reinterpret_cast<const unsigned char*>(bytes.data()) + at);
    if (!Admit(head, now)) return at;
    has_set_ = true;
    frame_ = head;
    frame_left_ = head.length;
    at += kHeadBytes;
  }
}

bool FrameGuard::TakeAcknowledgement() {
  const bool is_time = limits_.acknowledges && has_set_ && frame_left_ == 0 && server_has_set_;
  return is_time && !std::exchange(is_acknowledged_, true);
}

bool FrameGuard::Admit(const FrameHead& head, absl::Time now) {
  if (head.type != kData && head.length > limits_.frame_bytes) {
    Violate(FrontLimit::kFrameSize, limits_.frame_bytes, head.length);
    return false;
  }
  if (in_block_ != (head.type == kContinue)) {
    Violate(FrontLimit::kSequence, 0, head.type);
    return false;
  }
  // First of all what only makes it wait, as nothing may be counted twice.
  if (!frame_rate_.Take(now)) {
    waits_until_ = frame_rate_.When(kFramesAtOnce);
    return false;
  }
  switch (head.type) {
    case kHeaders:
      return AdmitHeaders(head, now);
    case kContinue:
      ++block_continuations_;
      return AdmitBlock(head);
    case kData:
      return head.length > 0 || (head.flags & kEndStream) != 0 || AdmitOther(&others_, FrontLimit::kOtherFrames, now);
    case kReset:
      return AdmitReset(head, now);
    case kSettings:
      return AdmitAnswered(head, &settings_, FrontLimit::kSettings, now);
    case kPing:
      return AdmitAnswered(head, &pings_, FrontLimit::kPings, now);
    case kWindow:
      return AdmitOther(&window_updates_, FrontLimit::kWindowUpdates, now);
    default:
      return AdmitOther(&others_, FrontLimit::kOtherFrames, now);
  }
}

bool FrameGuard::AdmitHeaders(const FrameHead& head, absl::Time now) {
  block_bytes_ = block_continuations_ = 0;
  if (head.stream <= last_stream_) {  // trailers, or a stream that is no longer open
    return AdmitOther(&others_, FrontLimit::kOtherFrames, now) && AdmitBlock(head);
  }
  wants_room_ = held_bytes_ + kBytesOfStream > most_held_;
  if (wants_room_) {
    frame_rate_.Give(1);
    return false;
  }
  if (!stream_rate_.Take(now) && !TakeOfClient(now)) {
    frame_rate_.Give(1);
    waits_until_ = stream_rate_.When(kStreamsAtOnce);
    if (client_calls_ != nullptr) waits_until_ = std::min(waits_until_, client_turn_);
    return false;
  }
  if (static_cast<int64_t>(streams_.size()) >= limits_.open_streams) {
    Violate(FrontLimit::kOpenStreams, limits_.open_streams, limits_.open_streams + 1);
    return false;
  }
  if (!AdmitBlock(head)) return false;
  last_stream_ = head.stream;
  streams_[head.stream].held = kBytesOfStream;
  held_bytes_ += kBytesOfStream;
  window_updates_.Give(kUpdatesForAStream);
  others_.Give(1);  // a client may reset a call that has just ended
  return true;
}

// Reserves in advance, as HTTP does: who only looked again later would get nothing beside a flood of reservations.
bool FrameGuard::TakeOfClient(absl::Time now) {
  if (client_calls_ == nullptr) return false;
  if (reserved_calls_ == 0) {
    if (client_calls_->Take(now)) return true;
    const std::optional<absl::Duration> wait = client_calls_->Reserve(now, kMostAhead, kStreamsAtOnce);
    client_turn_ = now + wait.value_or(kLookAgain);
    if (wait.has_value()) reserved_calls_ = kStreamsAtOnce;
  }
  if (reserved_calls_ == 0 || now < client_turn_) return false;
  --reserved_calls_;
  return true;
}

bool FrameGuard::AdmitBlock(const FrameHead& head) {
  block_bytes_ += head.length;
  in_block_ = (head.flags & kEndHeaders) == 0;
  if (block_bytes_ > limits_.header_bytes) {
    Violate(FrontLimit::kHeaderBytes, limits_.header_bytes, block_bytes_);
  } else if (block_continuations_ > limits_.continuations) {
    Violate(FrontLimit::kContinuations, limits_.continuations, block_continuations_);
  }
  return !violation_.has_value();
}

bool FrameGuard::AdmitOther(RateLimit* rate, FrontLimit limit, absl::Time now) {
  if (rate->Take(now)) return true;
  Violate(limit, rate->burst(), rate->burst() + 1);
  return false;
}

bool FrameGuard::AdmitAnswered(const FrameHead& head, RateLimit* rate, FrontLimit limit, absl::Time now) {
  if (!AdmitOther(rate, limit, now)) return false;
  if ((head.flags & kAck) != 0) return true;
  if (++unread_answers_ <= limits_.unread_answers) return true;
  Violate(FrontLimit::kUnread, limits_.unread_answers, unread_answers_);
  return false;
}

bool FrameGuard::AdmitReset(const FrameHead& head, absl::Time now) {
  const auto stream = streams_.find(head.stream);
  if (stream == streams_.end()) return AdmitOther(&others_, FrontLimit::kOtherFrames, now);
  if (!stream->second.answered) {
    // Both resets and what forgives them are soon forgotten.
    const double forgotten =
        static_cast<double>(limits_.resets) * absl::ToDoubleSeconds(now - resets_at_) / kResetWindowSeconds;
    resets_ = resets_ > 0 ? std::max(0.0, resets_ - forgotten) : std::min(0.0, resets_ + forgotten);
    resets_at_ = now;
    resets_ += 1;
    if (resets_ > static_cast<double>(most_resets_)) {
      Violate(FrontLimit::kResets, most_resets_, static_cast<int64_t>(resets_));
      return false;
    }
  }
  CloseStream(head.stream);
  return true;
}

void FrameGuard::Hold(Stream* stream, int64_t bytes) {
  held_bytes_ += bytes - stream->held;
  stream->held = bytes;
}

// Follows the messages in a call's data.  Once the next one begins, the last one was read.
void FrameGuard::CountData(absl::string_view payload) {
  const auto found = streams_.find(frame_.stream);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  while (!payload.empty()) {
    if (stream.prefix_bytes == kPrefixBytes) {
      const size_t part = std::min<size_t>(payload.size(), stream.message_left);
      Hold(&stream, stream.held + static_cast<int64_t>(part));
      stream.message_left -= static_cast<uint32_t>(part);
      payload.remove_prefix(part);
      if (stream.message_left == 0) stream.prefix_bytes = 0;
      continue;
    }
    if (stream.prefix_bytes == 0) {
      Hold(&stream, kBytesOfStream);
      stream.message_left = 0;
    }
    stream.message_left = stream.message_left << 8 | static_cast<unsigned char>(payload[0]);
    if (stream.prefix_bytes == 0) stream.message_left = 0;  // the flag is no part of the size
    payload.remove_prefix(1);
    if (++stream.prefix_bytes == kPrefixBytes && stream.message_left == 0) stream.prefix_bytes = 0;
  }
}

bool FrameGuard::has_part_of_message() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.second.prefix_bytes > 0; });
}

void FrameGuard::FromServer(absl::string_view bytes) {
  while (!bytes.empty()) {
    size_t part = 0;
    if (server_frame_bytes_ < kHeadBytes) {
      part = std::min(kHeadBytes - server_frame_bytes_, bytes.size());
      std::copy_n(bytes.data(), part, server_head_ + server_frame_bytes_);
      if (server_frame_bytes_ + part == kHeadBytes) {
        const FrameHead head = Parse(server_head_);
        server_left_ = head.length;
        OnServerFrame(head);
      }
    } else {
      part = static_cast<size_t>(std::min<int64_t>(server_left_, static_cast<int64_t>(bytes.size())));
      server_left_ -= static_cast<int64_t>(part);
    }
    bytes.remove_prefix(part);
    server_frame_bytes_ += part;
    if (server_frame_bytes_ >= kHeadBytes && server_left_ == 0) server_frame_bytes_ = 0;
  }
}

void FrameGuard::OnServerFrame(const FrameHead& head) {
  switch (head.type) {
    case kData:
    case kHeaders: {
      pings_.Give(1);
      window_updates_.Give(kUpdatesForAFrame);
      const auto stream = streams_.find(head.stream);
      if (stream == streams_.end()) return;
      if (!std::exchange(stream->second.answered, true)) {
        ++num_answered_;
        resets_ = std::max(resets_ - kForgivenByAnAnswer, -static_cast<double>(most_resets_));
      }
      // Who answers has read the request, unless more of it is on its way.
      if (stream->second.prefix_bytes == 0) Hold(&stream->second, kBytesOfStream);
      if ((head.flags & kEndStream) != 0) CloseStream(head.stream);
      return;
    }
    case kReset:
      return CloseStream(head.stream);
    case kPing:
    case kSettings:
      server_has_set_ = server_has_set_ || head.type == kSettings;
      if ((head.flags & kAck) != 0) {
        unread_answers_ = std::max<int64_t>(0, unread_answers_ - 1);
      } else {
        (head.type == kPing ? pings_ : settings_).Give(1);  // for the client's answer
      }
      return;
    default:
      return;
  }
}

void FrameGuard::CloseStream(uint32_t id) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  held_bytes_ -= stream->second.held;
  streams_.erase(stream);
}

}  // namespace switchyard::server
