#include "workers/moe/groups/choice_rows.h"

#include <cstring>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/moe/dispatch/host_routes.h"
#include "workers/ops/exchange/combine.h"

namespace switchyard::moe {

void ChoiceRows::Begin(int64_t tokens, int64_t top_k, int64_t hidden, DType dtype, bool numbers) {
  rows_ = rows_memory_.Rows(tokens * top_k, hidden, dtype);
  row_of_.assign(static_cast<size_t>(tokens * top_k), -1);
  numbers_ = TensorView();
  if (!numbers) return;
  numbers_ = numbers_memory_.Rows(tokens * top_k, 1, AccDType(dtype));
  std::memset(numbers_.raw(), 0, static_cast<size_t>(numbers_.NumElements() * DTypeBytes(numbers_.dtype())));
}

absl::Status ChoiceRows::Put(const Stream& stream, absl::Span<const int32_t> choices, const ReturnedRows& returned) {
  const int64_t shards = returned.num_shards;
  const auto count = static_cast<int64_t>(choices.size());
  std::vector<int32_t> slot_row;
  for (const int32_t choice : choices) {
    const int32_t* const of = returned.slot_row.data() + (choice - returned.first_choice) * shards;
    slot_row.insert(slot_row.end(), of, of + shards);
  }
  TensorView from = returned.rows;
  if (shards > 1) {
    from = sums_memory_.Rows(count, rows_.dim(1), rows_.dtype());
    RETURN_IF_ERROR(ops::AddOutputs(stream, {.y = returned.rows, .slot_row = slot_row}, from));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t choice = choices[static_cast<size_t>(i)];
    const int64_t row = shards > 1 ? i : slot_row[static_cast<size_t>(i)];
    SY_CHECK_GE(row, 0);
    std::memcpy(RowAt(rows_, choice), RowAt(from, row), static_cast<size_t>(RowBytes(rows_)));
    row_of_[static_cast<size_t>(choice)] = choice;
  }
  if (numbers_.rank() == 0) return absl::OkStatus();
  VisitDType(numbers_.dtype(), [&]<class Number>() {
    for (size_t i = 0; i < slot_row.size(); ++i) {
      const int32_t choice = choices[i / static_cast<size_t>(shards)];
      if (slot_row[i] >= 0) *numbers_.row<Acc<Number>>(choice) += *returned.numbers.row<Acc<Number>>(slot_row[i]);
    }
  });
  return absl::OkStatus();
}

std::vector<TensorView> ChoiceRows::Matrices() const {
  return numbers_.rank() == 0 ? std::vector<TensorView>{rows_} : std::vector<TensorView>{rows_, numbers_};
}

absl::Status ChoiceRows::StartGather(const Stream& stream, comm::Communicator* among, const comm::CommCall& call,
                                     const std::vector<std::vector<int32_t>>* lists) {
  under_way_.push_back({.gather = {}, .lists = lists});
  return under_way_.back().gather.Start(stream, among, call, Matrices(), (*lists)[static_cast<size_t>(among->rank())]);
}

absl::Status ChoiceRows::FinishGather() {
  SY_CHECK(!under_way_.empty());
  Gathering& oldest = under_way_.front();
  RETURN_IF_ERROR(oldest.gather.Finish());
  for (size_t rank = 0; rank < oldest.lists->size(); ++rank) {
    const std::vector<int32_t>& choices = (*oldest.lists)[rank];
    RETURN_IF_ERROR(oldest.gather.Place(static_cast<int>(rank), choices, Matrices()));
    for (const int32_t choice : choices) row_of_[static_cast<size_t>(choice)] = choice;
  }
  under_way_.pop_front();
  return absl::OkStatus();
}

absl::Status ChoiceRows::AddTo(const Stream& stream, const TensorView& weight, const TensorView& to) const {
  return ops::Combine(stream, {.y = rows_, .slot_row = row_of_, .weight = weight}, to);
}

}  // namespace switchyard::moe
