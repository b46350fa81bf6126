// Small messages ("words") that the ranks of a job exchange beside training, all to all, so that each draws the same
// conclusions and they end, stop and save at the same step.  Each call is a collective of class control.  Errors: the
// communicator's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::train {

// One rank's word; its bytes are the message.
struct RankWord {
  int32_t stop = 0;     // StopKind
  int32_t saving = 0;   // SavePhase
  int32_t code = 0;     // absl::StatusCode of what ends the job on this rank
  int32_t outcome = 0;  // of it: TrainOutcome
  int64_t number = 0;
  char text[488] = {};  // of the error, or another message; ends with a NUL

  // Sets the error, cut to the room in `text`; OK leaves the word as it is.
  void SetStatus(const absl::Status& status);
  void SetText(absl::string_view text);
};
inline constexpr size_t kMaxRankText = sizeof(RankWord::text) - 1;

// Every rank's word, by rank.
absl::StatusOr<std::vector<RankWord>> ExchangeWords(comm::Communicator* comm, const RankWord& mine,
                                                    absl::Duration limit);
// The first rank's error, "rank 2: …", marked Lost, Failed or Blocked as it is there; OK if there is none.
absl::Status FirstError(absl::Span<const RankWord> words);
// FirstError of all ranks' statuses.
absl::Status Agree(comm::Communicator* comm, const absl::Status& mine, absl::Duration limit);
// Rank 0's text, of any length and any bytes, or its error; the others' arguments are ignored.
absl::StatusOr<std::string> FromLeader(comm::Communicator* comm, const absl::StatusOr<std::string>& mine,
                                       absl::Duration limit);

}  // namespace switchyard::train
