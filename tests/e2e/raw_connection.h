// A TCP connection over which a test speaks HTTP/2 byte by byte, as a hostile client may.
//
// Thread-compatible.  Connects on construction.  Follows only those rules of the protocol that a caller asks for: Pump
// acknowledges SETTINGS and PING and keeps the windows, SendMessages sends within them.  No call waits beyond its
// limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace switchyard {

class RawConnection {
 public:
  struct Options {
    std::string from = {};   // address of this end; empty: the system's choice
    int receive_buffer = 0;  // of the socket, in bytes; 0: the system's choice
    bool answers = true;     // false: Pump sends nothing
  };
  // What Pump has read.
  struct Seen {
    std::map<uint32_t, std::string> headers;  // of streams: HPACK blocks, in the order of their frames
    std::map<uint32_t, std::string> messages;
    std::map<uint32_t, uint32_t> resets;  // error codes of RST_STREAM
    std::optional<uint32_t> goaway;       // its error code
    std::string bytes;                    // the first of all bytes
  };

  // `address` is HOST:PORT, IPv4.  A connection that cannot be made counts as ended.
  RawConnection(const std::string& address, const Options& options);
  explicit RawConnection(const std::string& address) : RawConnection(address, Options()) {}
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool is_connected() const { return was_connected_; }  // whether it was, once
  bool is_ended() const { return ended_; }
  int64_t bytes_sent() const { return bytes_sent_; }
  const Seen& seen() const { return seen_; }
  size_t num_open() const { return streams_.size(); }  // of OpenStream, and not ended by the peer

  // Sends what the socket takes within `limit`.  Returns whether that is all.
  bool Send(const std::string& bytes, absl::Duration limit);
  // Reads and answers what has come, waiting at most `limit` for the first bytes.  Returns false if the peer has ended
  // the connection.
  bool Pump(absl::Duration limit);
  // Reads without looking at anything, at most so many bytes.  Returns as Pump does.
  bool Discard(size_t most = kReadBytes);
  // Reads until the peer ends the connection; false: it has not after `limit`.
  bool AwaitEnd(absl::Duration limit);

  // Opens a stream whose messages are `bytes`; SendMessages sends them.
  void OpenStream(uint32_t stream, const std::string& headers, std::shared_ptr<const std::string> bytes);
  // Sends as many bytes of open streams as their windows and the socket allow.  Returns whether any are left.
  bool SendMessages();

 private:
  static constexpr size_t kReadBytes = 1 << 20;  // by one call of Read
  struct Stream {
    std::shared_ptr<const std::string> bytes;  // shared by streams that send the same
    size_t sent = 0;
    int64_t window = 0;
  };

  bool Read(absl::Duration limit, bool keep, size_t most = kReadBytes);
  void HandleFrames();
  void Handle(char type, char flags, uint32_t stream, const std::string& payload);
  void Flush();

  const int fd_;
  const bool answers_;
  bool was_connected_ = false;
  bool ended_ = false;
  int64_t bytes_sent_ = 0;
  std::string unsent_;    // answers of Pump and frames of SendMessages
  std::string received_;  // bytes of frames that are not whole
  Seen seen_;
  std::map<uint32_t, Stream> streams_;
  int64_t window_ = 65535, first_window_ = 65535;
};

}  // namespace switchyard
