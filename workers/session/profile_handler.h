// Reports what a worker learned of the model's routing to the server, in one session, when the server asks for it while
// the worker serves.
//
// Taken between steps, a piece at a time (a profile, or the probe maps), so that no step waits for long; made bytes by
// a thread of its own; sent part by part, each when the server asks for it, so that nothing else waits behind it in the
// link.  The pieces are as old as each other but for the steps between them.  Used by the thread that runs the worker.
// Does not do: fitting anew; the maps are those in use.
#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "switchyard/v1/worker.pb.h"
#include "workers/moe/popularity/row_load_predictor.h"

namespace switchyard::worker {

class ProfileHandler {
 public:
  using SendFn = absl::AnyInvocable<void(v1::ProfilePart)>;
  using LoadPredictorFn = absl::AnyInvocable<const moe::RowLoadPredictor*()>;
  static constexpr int64_t kPartBytes = int64_t{1} << 20;

  // load_predictor: returns the present one; null: nothing is learned here.
  ProfileHandler(LoadPredictorFn load_predictor, SendFn send)
      : load_predictor_(std::move(load_predictor)), send_(std::move(send)) {}

  // The worker is in this group now, as that rank; 0 = in none.  What was asked for is forgotten.
  void Enter(int64_t group_epoch, int rank);
  // Offset 0 begins anew, with what is known from now on.
  void Ask(const v1::SendProfile& message);
  // Collects the next piece, or sends a part once there are bytes.
  void Poll();
  // Whether Poll has something to do.
  bool waiting() const { return asked_.has_value(); }

 private:
  void Take(const moe::RowLoadPredictor& load_predictor);
  void SendPart();
  void Refuse(absl::string_view why);
  v1::ProfilePart Answer() const;

  LoadPredictorFn load_predictor_;
  SendFn send_;
  int64_t group_epoch_ = 0;
  int rank_ = 0;
  std::optional<v1::SendProfile> asked_;  // the request that is not answered yet
  int64_t request_ = 0;                   // the request that pieces and bytes are for; 0 = none
  int next_piece_ = 0;
  std::optional<popularity::ProfileBundle> pieces_;  // so far
  std::future<std::string> making_;                  // makes their bytes
  std::string bytes_;                                // until the last part is sent
};

}  // namespace switchyard::worker
