// What a group's workers have learned of the model's routing, asked for while they serve: one rank after the other,
// part by part, each part after the one before, so that steps' results never wait behind a profile.
//
//   idle ── Start ──► rank 0: part, part … ► rank 1: … ► the last rank ──► done(bytes of each rank) ──► idle
//
// A group that is lost, a rank that answers with an error or not within kPatience, and profiles of more than kMostBytes
// together end it; `done` is called once, whatever happens.  One at a time.  No thread or clock of its own: the engine
// loop owns it.  Does not do: reading what it collects (profile_merge.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace switchyard::server {

// An answer of a worker.
struct ProfilePart {
  int64_t request = 0;
  int64_t offset = 0;  // in the worker's profile
  int64_t total_bytes = 0;
  std::string data;   // empty: the profile is, or there is an error
  std::string error;  // why there is none
};

class ProfileCollector {
 public:
  // How long a rank may take for a part, steps that it is in included.
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  struct Progress {
    int rank = 0;  // that is asked
    int num_ranks = 0;
    int64_t bytes = 0;  // of all ranks so far
  };
  // To the rank: it has to answer with the part at that offset of what it had learned when offset 0 was asked for.
  using AskFn = absl::AnyInvocable<void(int rank, int64_t request, int64_t offset)>;
  struct Call {
    absl::AnyInvocable<void(const Progress&)> on_progress;
    absl::AnyInvocable<void(absl::StatusOr<std::vector<std::string>>)> done;  // [R]
  };

  explicit ProfileCollector(AskFn ask) : ask_(std::move(ask)) {}

  bool busy() const { return call_ != nullptr; }
  // REQUIRES: not busy; num_ranks >= 1.
  void Start(int num_ranks, Call call, absl::Time now);
  // What does not answer the last question is late and changes nothing.
  void OnPart(int rank, ProfilePart part, absl::Time now);
  // Ends it, if it is busy.
  void Fail(const absl::Status& status);
  void Tick(absl::Time now);

 private:
  void Ask(absl::Time now);
  void End(absl::StatusOr<std::vector<std::string>> profiles);

  AskFn ask_;
  std::unique_ptr<Call> call_;  // null: idle
  int64_t request_ = 0;         // of the last one
  int num_ranks_ = 0;
  std::vector<std::string> profiles_;  // of the ranks so far, the last one growing
  int64_t bytes_ = 0;                  // of all
  absl::Time answer_by_;
};

}  // namespace switchyard::server
