// Guard of one client's HTTP/2 frames: says which of its bytes may go on to gRPC, and which limit it broke.
//
// gRPC 1.51 makes a call of every HEADERS frame, keeps every CONTINUATION, and answers every PING, as fast as they
// come. The guard reads the heads of frames in both directions, changes nothing and knows no HPACK.  What a busy client
// also does, it paces: calls and frames beyond a rate wait.  What only floods do ends the connection.  Many limits grow
// with what the client gets, since clients of gRPC send a PING or WINDOW_UPDATE for data that they receive.
//
// Does no I/O and reads no clock.  Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/front/rate_limit.h"

namespace switchyard::server {

// The limits of a connection: the labels of switchyard_connections_ended_total.
enum class FrontLimit {
  kPreface,        // no HTTP/2 (or, behind TLS, plaintext)
  kFrameSize,      // of a frame other than DATA
  kHeaderBytes,    // of a header block, as sent
  kContinuations,  // of a header block
  kSequence,       // another frame within a header block
  kOpenStreams,
  kResets,  // of calls that were not answered
  kPings,
  kSettings,
  kWindowUpdates,
  kOtherFrames,  // PRIORITY, unknown frames, empty DATA, frames of streams that are no longer open
  kUnread,       // PING and SETTINGS whose answers the client has not read
  kHandshake,    // TLS did not begin, or too slowly
  kMemory,       // bytes of unfinished calls, held for too long
  kNumLimits,
};
absl::string_view NameOf(FrontLimit limit);

struct FrontViolation {
  FrontLimit limit;
  int64_t allowed = 0;
  int64_t actual = 0;
  std::string ToString() const;
};

// Returns the frame GOAWAY that ends a connection which broke a limit: ENHANCE_YOUR_CALM.
std::string GoAway(uint32_t last_stream, absl::string_view why);

inline constexpr char kSettingsAck[] = "\0\0\0\4\1\0\0\0\0";  // 9 bytes

class FrameGuard {
 public:
  struct Limits {
    int64_t frame_bytes = 64 << 10;   // of all frames but DATA, whose size gRPC itself limits
    int64_t header_bytes = 64 << 10;  // gRPC refuses calls with more than 8 KB, by themselves
    int64_t continuations = 4;
    int64_t open_streams = 2048;
    int64_t resets = 2000;  // before an answer; within ten seconds, except one for ten answered calls
    // Beyond these the connection waits.  Calls beyond its own rate may still go on by the rate of its client.
    double streams_a_second = 20, stream_burst = 20;
    double frames_a_second = 20000, frame_burst = 20000;
    // Beyond these it is ended.
    double pings_a_second = 100, ping_burst = 500;
    double settings_a_second = 10, settings_burst = 100;
    double window_updates_a_second = 500, window_update_burst = 4000;
    double other_frames_a_second = 100, other_frame_burst = 1000;
    int64_t unread_answers = 1000;
    // gRPC holds a client to its SETTINGS (streams, bytes of metadata) only once the client has acknowledged them,
    // which a hostile one never does.  If this is set, nothing goes on behind a client's own SETTINGS before
    // TakeAcknowledgement.
    bool acknowledges = false;
  };
  // What an open call costs gRPC besides the bytes of its message.
  static constexpr int64_t kBytesOfStream = 32 << 10;

  // `part` (0 to 1) of the resets: less for clients whose connections were ended before.  `client_calls`: of all
  // connections of the client, those of HTTP among them; may be null.
  FrameGuard(const Limits& limits, absl::Time now, double part = 1, std::shared_ptr<SharedRate> client_calls = nullptr);

  // Returns how many of `bytes` may go on, from the first.  The rest is to be presented again, with what follows it:
  // when more has come if that is the start of a frame, at waits_until if that is later than now.  With a violation
  // nothing may go on any more.
  size_t FromClient(absl::string_view bytes, absl::Time now);
  // Reads what gRPC sends, in any pieces.
  void FromServer(absl::string_view bytes);

  // How many bytes more open calls may hold: a call for which there is no room waits.  Data is let on, so that the
  // caller must present less than it can bear.
  void SetRoom(int64_t bytes) { most_held_ = held_bytes_ + bytes; }
  // Whether a call waits for room.
  bool wants_room() const { return wants_room_; }
  // Whether the frame kSettingsAck is to go on now, behind what FromClient has let pass: gRPC has sent its SETTINGS,
  // and the client its own.  True once.
  bool TakeAcknowledgement();

  const std::optional<FrontViolation>& violation() const { return violation_; }
  absl::Time waits_until() const { return waits_until_; }
  // Whether the client's preface was passed on.
  bool begun() const { return begun_; }
  // Bytes of gRPC's last frame, as far as presented, if that is not whole; 0: another frame may be put behind it.
  size_t server_frame_bytes() const { return server_frame_bytes_; }
  uint32_t last_stream() const { return last_stream_; }
  // Bytes that open calls hold: of each call the message that came last, or as much of it as has come, until the server
  // sends something for that call.
  int64_t held_bytes() const { return held_bytes_; }
  // Calls that the server has begun to answer.
  int64_t num_answered() const { return num_answered_; }
  // Whether a message has begun whose rest has not come.
  bool has_part_of_message() const;
  size_t open_streams() const { return streams_.size(); }

 private:
  struct FrameHead {
    int64_t length = 0;
    uint8_t type = 0, flags = 0;
    uint32_t stream = 0;
  };
  struct Stream {
    bool answered = false;
    int prefix_bytes = 0;       // of the next message's prefix
    uint32_t message_left = 0;  // or, within the prefix, the message's size so far
    int64_t held = 0;
  };

  static FrameHead Parse(const unsigned char* bytes);
  void Violate(FrontLimit limit, int64_t allowed, int64_t actual);
  // Judges a client's frame by its head.  False: it may not go on, now or at all.
  bool Admit(const FrameHead& head, absl::Time now);
  bool AdmitHeaders(const FrameHead& head, absl::Time now);
  // Takes a call of the client's rate, or reserves some from client_turn_ on.
  bool TakeOfClient(absl::Time now);
  bool AdmitBlock(const FrameHead& head);
  bool AdmitOther(RateLimit* rate, FrontLimit limit, absl::Time now);
  bool AdmitAnswered(const FrameHead& head, RateLimit* rate, FrontLimit limit, absl::Time now);
  bool AdmitReset(const FrameHead& head, absl::Time now);
  void CountData(absl::string_view payload);
  void OnServerFrame(const FrameHead& head);
  void CloseStream(uint32_t id);
  void Hold(Stream* stream, int64_t bytes);

  const Limits limits_;
  std::optional<FrontViolation> violation_;
  absl::Time waits_until_ = absl::InfinitePast();
  bool begun_ = false;
  bool has_set_ = false, server_has_set_ = false, is_acknowledged_ = false;  // of SETTINGS

  // The client's frame whose payload is passing, and its header block, if it is in one.
  FrameHead frame_;
  int64_t frame_left_ = 0;
  bool in_block_ = false;
  int64_t block_bytes_ = 0, block_continuations_ = 0;

  // gRPC's frame.
  unsigned char server_head_[9] = {};
  size_t server_frame_bytes_ = 0;
  int64_t server_left_ = 0;  // of its payload

  absl::flat_hash_map<uint32_t, Stream> streams_;  // open ones
  uint32_t last_stream_ = 0;
  int64_t held_bytes_ = 0, most_held_ = std::numeric_limits<int64_t>::max();
  int64_t num_answered_ = 0;
  bool wants_room_ = false;
  int64_t unread_answers_ = 0;
  double resets_ = 0;  // less those forgiven
  int64_t most_resets_;
  absl::Time resets_at_;
  const std::shared_ptr<SharedRate> client_calls_;
  int reserved_calls_ = 0;  // of client_calls_, from client_turn_ on
  absl::Time client_turn_ = absl::InfinitePast();
  RateLimit stream_rate_, frame_rate_, pings_, settings_, window_updates_, others_;
};

}  // namespace switchyard::server
