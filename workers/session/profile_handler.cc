#include "workers/session/profile_handler.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace switchyard::worker {
namespace {

bool Counted(const popularity::ProfileBundle& bundle) {
  return std::any_of(bundle.profiles.begin(), bundle.profiles.end(), [](const popularity::PathProfile& profile) {
    for (int layer = 0; layer < profile.identity().shape.num_layers; ++layer) {
      if (profile.num_tokens(layer) > 0) return true;
    }
    return false;
  });
}

}  // namespace

void ProfileHandler::Enter(int64_t group_epoch, int rank) {
  group_epoch_ = group_epoch;
  rank_ = rank;
  request_ = 0;
  asked_.reset();
  pieces_.reset();
  making_ = {};  // waits for the bytes that are being made
  bytes_.clear();
}

void ProfileHandler::Ask(const v1::SendProfile& message) {
  if (group_epoch_ == 0 || message.group_epoch() != group_epoch_) return;
  asked_ = message;
  if (message.offset() == 0) {
    request_ = message.request();
    next_piece_ = 0;
    pieces_.reset();
    making_ = {};
    bytes_.clear();
  }
  Poll();
}

void ProfileHandler::Poll() {
  if (!asked_.has_value()) return;
  if (asked_->request() != request_) return Refuse("the profile that a part of was asked for is not held any more");
  if (!bytes_.empty()) return SendPart();
  if (making_.valid()) {
    if (making_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    bytes_ = making_.get();
    return SendPart();
  }
  const moe::RowLoadPredictor* const load_predictor = load_predictor_();
  if (load_predictor == nullptr) {
    return Refuse("learns nothing: coming layers are not forecast (--forecast=always, or a --placement that uses it)");
  }
  Take(*load_predictor);
}

void ProfileHandler::Take(const moe::RowLoadPredictor& load_predictor) {
  if (!pieces_.has_value()) pieces_ = load_predictor.EmptyBundle();
  // Rank 0 alone reports what all ranks loaded at the start.
  load_predictor.AddPiece(next_piece_++, /*own=*/rank_ != 0, &*pieces_);
  if (next_piece_ < load_predictor.num_pieces()) return;
  // A worker without a row of its own has nothing to add; the server says so if nobody has.
  if (!Counted(*pieces_)) *pieces_ = load_predictor.EmptyBundle();
  making_ =
      std::async(std::launch::async, [bundle = *std::exchange(pieces_, std::nullopt)] { return bundle.Serialize(); });
}

v1::ProfilePart ProfileHandler::Answer() const {
  v1::ProfilePart part;
  part.set_group_epoch(group_epoch_);
  part.set_request(asked_->request());
  part.set_offset(asked_->offset());
  return part;
}

void ProfileHandler::Refuse(absl::string_view why) {
  v1::ProfilePart part = Answer();
  part.set_error(std::string(why));
  asked_.reset();
  send_(std::move(part));
}

void ProfileHandler::SendPart() {
  const auto total = static_cast<int64_t>(bytes_.size());
  const int64_t offset = asked_->offset();
  if (offset < 0 || offset >= total) {
    return Refuse(absl::StrCat("a part at ", offset, " was asked for, the profile has ", total, " bytes"));
  }
  v1::ProfilePart part = Answer();
  part.set_total_bytes(total);
  part.set_data(bytes_.substr(static_cast<size_t>(offset), static_cast<size_t>(kPartBytes)));
  asked_.reset();
  if (offset + static_cast<int64_t>(part.data().size()) == total) {
    bytes_ = std::string();
    request_ = 0;
  }
  send_(std::move(part));
}

}  // namespace switchyard::worker
