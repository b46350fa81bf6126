#include "workers/train/job/rank_agreement.h"

#include <cstring>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/utf8.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {

static_assert(std::is_trivially_copyable_v<RankWord> && sizeof(RankWord) == 512);

void RankWord::SetText(absl::string_view from) {
  const absl::string_view cut = CutText(from, kMaxRankText);
  std::memcpy(text, cut.data(), cut.size());
  text[cut.size()] = '\0';
}

void RankWord::SetStatus(const absl::Status& status) {
  if (status.ok()) return;
  code = static_cast<int32_t>(status.code());
  outcome = static_cast<int32_t>(OutcomeOf(status));
  SetText(status.message());
}

absl::StatusOr<std::vector<RankWord>> ExchangeWords(comm::Communicator* comm, const RankWord& mine,
                                                    absl::Duration limit) {
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                   comm->AllGather({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + limit},
                                   absl::MakeConstSpan(reinterpret_cast<const char*>(&mine), sizeof(mine))));
  RETURN_IF_ERROR(work->Wait());
  std::vector<RankWord> words(static_cast<size_t>(comm->world()));
  for (size_t r = 0; r < words.size(); ++r) {
    const absl::Span<const char> bytes = work->received()[r].span();
    SY_CHECK_EQ(bytes.size(), sizeof(RankWord));
    std::memcpy(&words[r], bytes.data(), sizeof(RankWord));
    words[r].text[kMaxRankText] = '\0';
  }
  return words;
}

absl::Status FirstError(absl::Span<const RankWord> words) {
  for (size_t r = 0; r < words.size(); ++r) {
    const RankWord& word = words[r];
    if (word.code == 0) continue;
    const std::string who = words.size() > 1 ? absl::StrCat("rank ", r, ": ") : "";
    absl::Status status(static_cast<absl::StatusCode>(word.code), absl::StrCat(who, word.text));
    const auto outcome = static_cast<jobs::TrainOutcome>(word.outcome);
    if (outcome == jobs::TrainOutcome::kLost) return Lost(std::move(status));
    return outcome == jobs::TrainOutcome::kBlocked ? Blocked(std::move(status)) : Failed(std::move(status));
  }
  return absl::OkStatus();
}

absl::Status Agree(comm::Communicator* comm, const absl::Status& mine, absl::Duration limit) {
  RankWord word;
  word.SetStatus(mine);
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(comm, word, limit));
  return FirstError(words);
}

absl::StatusOr<std::string> FromLeader(comm::Communicator* comm, const absl::StatusOr<std::string>& mine,
                                       absl::Duration limit) {
  RankWord word;
  if (comm->rank() == 0) {
    word.SetStatus(mine.status());
    if (mine.ok()) {
      word.SetText(*mine);
      word.number = static_cast<int64_t>(mine->size());
    }
  }
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(comm, word, limit));
  RETURN_IF_ERROR(FirstError(words));
  const int64_t bytes = words[0].number;
  if (bytes <= static_cast<int64_t>(kMaxRankText)) return std::string(words[0].text, static_cast<size_t>(bytes));
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      comm->Broadcast({.comm_class = comm::CommClass::kControl, .deadline = MonotonicNow() + limit}, /*root=*/0, bytes,
                      comm->rank() == 0 ? absl::MakeConstSpan(*mine) : absl::Span<const char>()));
  RETURN_IF_ERROR(work->Wait());
  const absl::Span<const char> text = work->received()[0].span();
  return std::string(text.begin(), text.end());
}

}  // namespace switchyard::train
