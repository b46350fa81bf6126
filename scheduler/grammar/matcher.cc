#include "scheduler/grammar/matcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::grammar {
namespace {

// So that finding the place again is little work.
constexpr size_t kSaveAfter = 64;
constexpr size_t kMostSaved = 64;

}  // namespace

absl::StatusOr<MaskPtr> MaskTask::Run() {
  if (work <= 0) return absl::ResourceExhaustedError("finding the text's place again takes too long");
  twin->Trim();
  return twin->MaskOf(twin->Restore(place), &work);
}

// Where the beginning fails, it does for all texts of the automaton, which may stay unused for long; later, others may
// be on their way.
template <class T>
absl::StatusOr<T> Matcher::OrForget(absl::StatusOr<T> result) {
  if (absl::IsResourceExhausted(result.status()) && tokens_.empty() && !saved_) automaton_->Forget();
  return result;
}

absl::StatusOr<MaskPtr> Matcher::NextMask() {
  RETURN_IF_ERROR(FindPlace());
  return OrForget(automaton_->MaskOf(set_, &work_));
}

absl::StatusOr<MaskPtr> Matcher::NextMaskWithin(int64_t* allowance) {
  RETURN_IF_ERROR(FindPlace());
  if (automaton_->KnownMask(set_) != nullptr) return automaton_->KnownMask(set_);
  if (*allowance <= 0) return MaskPtr();
  if (*allowance >= work_) return OrForget(automaton_->MaskOf(set_, &work_));
  const int64_t before = *allowance;
  absl::StatusOr<MaskPtr> mask = automaton_->MaskOf(set_, allowance);
  if (!mask.ok()) return MaskPtr();  // a try costs nothing of the budget, so that the outcome is the same
  work_ -= before - *allowance;
  return mask;
}

MaskTask Matcher::TaskOfMask() {
  if (!FindPlace().ok()) return {};
  return {.automaton = automaton_, .twin = automaton_->twin(), .place = automaton_->Save(set_), .work = work_};
}

void Matcher::KeepMask(MaskPtr mask, int64_t work_left) {
  work_ = work_left;
  if (generation_ == automaton_->generation()) automaton_->KeepMask(set_, std::move(mask));
}

absl::StatusOr<bool> Matcher::AnyFits() {
  RETURN_IF_ERROR(FindPlace());
  return OrForget(automaton_->AnyFits(set_, &work_));
}

absl::Status Matcher::Accept(int32_t token) {
  work_ = std::min(work_ + kWorkPerToken, kFirstWork);
  RETURN_IF_ERROR(FindPlace());
  RETURN_IF_ERROR(Advance(token));
  tokens_.push_back(token);
  if (tokens_.size() >= kSaveAfter && automaton_->NumWays(set_) <= kMostSaved) {
    saved_ = automaton_->Save(set_);
    tokens_.clear();
  }
  return absl::OkStatus();
}

absl::Status Matcher::FindPlace() {
  automaton_->Trim();
  if (generation_ == automaton_->generation()) return absl::OkStatus();
  if (saved_) {
    set_ = automaton_->Restore(*saved_);
  } else {
    ASSIGN_OR_RETURN(set_, OrForget(automaton_->Start(&work_)));
  }
  for (const int32_t token : tokens_) RETURN_IF_ERROR(Advance(token));
  generation_ = automaton_->generation();
  return absl::OkStatus();
}

absl::Status Matcher::Advance(int32_t token) {
  const absl::string_view bytes = automaton_->trie().BytesOf(token);
  int32_t set = bytes.empty() ? Automaton::kDead : set_;
  for (const char byte : bytes) {
    ASSIGN_OR_RETURN(set, automaton_->Next(set, static_cast<uint8_t>(byte), &work_));
  }
  if (set == Automaton::kDead) return absl::InvalidArgumentError(absl::StrCat("token ", token, " does not fit"));
  set_ = set;
  return absl::OkStatus();
}

}  // namespace switchyard::grammar
