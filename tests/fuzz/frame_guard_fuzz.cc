// The guard of HTTP/2 frames: client's bytes, and behind a marker the server's, turn by turn.  What goes on is at most
// what came, nothing goes on after a violation, counts never go below nothing, and it does not matter how bytes are
// cut.
#include <algorithm>
#include <string>

#include "absl/strings/str_split.h"
#include "server/front/frame_guard.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

using server::FrameGuard;

constexpr absl::string_view kTurn = "~~";  // begins what the other end says
const FrameGuard::Limits kFew = {.open_streams = 5,
                                 .resets = 3,
                                 .stream_burst = 25,
                                 .frame_burst = 210,
                                 .ping_burst = 5,
                                 .settings_burst = 5,
                                 .window_update_burst = 5,
                                 .other_frame_burst = 5,
                                 .unread_answers = 3};

// Presents the client's bytes in pieces of `piece`; returns how many went on.
size_t Present(absl::string_view bytes, size_t piece, absl::Time now, FrameGuard* guard) {
  size_t passed = 0;
  for (size_t end = 0; end < bytes.size();) {
    end = std::min(bytes.size(), end + piece);
    const size_t more = guard->FromClient(bytes.substr(passed, end - passed), now);
    SY_CHECK(more <= end - passed);
    passed += more;
    SY_CHECK(guard->held_bytes() >= 0);
    SY_CHECK(guard->open_streams() <= 5);
    if (guard->violation().has_value()) SY_CHECK_EQ(guard->FromClient(bytes.substr(passed), now), size_t{0});
  }
  return passed;
}

}  // namespace

void Fuzz(absl::string_view input) {
  absl::Time now = absl::UnixEpoch();
  FrameGuard whole(kFew, now), cut(kFew, now);
  const size_t piece = input.empty() ? 1 : 1 + static_cast<unsigned char>(input.back()) % 32;
  bool is_client = true;
  for (const absl::string_view part : absl::StrSplit(input, kTurn)) {
    if (is_client) {
      SY_CHECK_EQ(Present(part, part.size() + 1, now, &whole), Present(part, piece, now, &cut));
      SY_CHECK_EQ(whole.violation().has_value(), cut.violation().has_value());
      if (whole.violation().has_value()) SY_CHECK_EQ(whole.violation()->ToString(), cut.violation()->ToString());
    } else {
      whole.FromServer(part);
      for (size_t at = 0; at < part.size(); at += piece) cut.FromServer(part.substr(at, piece));
    }
    SY_CHECK_EQ(whole.held_bytes(), cut.held_bytes());
    SY_CHECK_EQ(whole.open_streams(), cut.open_streams());
    SY_CHECK_EQ(whole.server_frame_bytes(), cut.server_frame_bytes());
    is_client = !is_client;
    now += absl::Milliseconds(5);
  }
}

}  // namespace switchyard::fuzz
