// Collects the workers' profiles of the model's routing while they serve: rank by rank and part by part, each part
// requested after the one before, so that steps' results never wait behind a profile.
//
//   idle ── Start ──► rank 0: part, part … ► rank 1: … ► the last rank ──► done(bytes of each rank) ──► idle
//
// It fails if the group is lost, a rank answers with an error or not within kPatience, or the profiles exceed
// kMostBytes together.  `done` is called exactly once.  There is one collection at a time.  Has no thread or clock: the
// engine loop owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace switchyard::v1 {
class GetProfileRequest;
}

namespace switchyard::server {

// A part of a worker's profile, or its error.
struct ProfilePart {
  int64_t request = 0;
  int64_t offset = 0;  // in the worker's profile
  int64_t total_bytes = 0;
  std::string data;   // empty if the profile is empty, or on error
  std::string error;  // why there is no profile; empty: there is one
};

class ProfileCollector {
 public:
  // Time limit of a rank for a part, including steps under way.
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  struct Progress {
    int rank = 0;  // the rank that sends its profile now
    int num_ranks = 0;
    int64_t bytes = 0;  // of all ranks so far
  };
  // Asks the rank for the part at `offset` of its profile.  All parts of a request are of the profile at its offset 0.
  using AskFn = absl::AnyInvocable<void(int rank, int64_t request, int64_t offset)>;
  struct Call {
    absl::AnyInvocable<void(const Progress&)> on_progress;
    absl::AnyInvocable<void(absl::StatusOr<std::vector<std::string>>)> done;  // [R]
  };

  explicit ProfileCollector(AskFn ask) : ask_(std::move(ask)) {}

  bool busy() const { return call_ != nullptr; }
  // REQUIRES: not busy; num_ranks >= 1.
  void Start(int num_ranks, Call call, absl::Time now);
  // Ignores a late part, which does not answer the last request.
  void OnPart(int rank, ProfilePart part, absl::Time now);
  // Ends the collection, if there is one, with `status`.
  void Fail(const absl::Status& status);
  void Tick(absl::Time now);

 private:
  void Ask(absl::Time now);
  void End(absl::StatusOr<std::vector<std::string>> profiles);

  AskFn ask_;
  std::unique_ptr<Call> call_;  // null: idle
  int64_t request_ = 0;         // number of the last call
  int num_ranks_ = 0;
  std::vector<std::string> profiles_;  // of the ranks so far; the last one grows
  int64_t bytes_ = 0;                  // of all
  absl::Time answer_by_;
};

// FAILED_PRECONDITION (OTHER_WEIGHTS): the request names weights that are not the served ones.
absl::Status CheckProfileRequest(const v1::GetProfileRequest& request, absl::string_view served_hash);

// Merges the ranks' `bundles` [R] (profile_bundle.h) into one profile: counts add up; maps are means weighted by their
// rows.  FAILED_PRECONDITION (NO_PROFILE): nothing was routed yet.  INTERNAL: a bundle cannot be read, or is of other
// weights.  Pure.
absl::StatusOr<std::string> MergeProfiles(const std::vector<std::string>& bundles, absl::string_view served_hash);

}  // namespace switchyard::server
