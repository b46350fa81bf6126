#include "tests/workers/comm/view_checks.h"

#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::test {
namespace {

// A byte that depends on sender, receiver, round and position.
uint8_t ByteOf(int from, int to, int round, int64_t i) {
  return static_cast<uint8_t>(from * 101 + to * 37 + round * 17 + i * 7 + 1);
}

// A plan of parts with `gap` bytes before each.
struct Plan {
  std::vector<int64_t> offsets, bytes;
  int64_t total = 0;

  template <class Size>
  Plan(int world, int64_t gap, const Size& size) {
    for (int r = 0; r < world; ++r) {
      total += gap;
      offsets.push_back(total);
      bytes.push_back(size(r));
      total += bytes.back();
    }
  }
};

using SizeOf = std::function<int64_t(int from, int to)>;

absl::Status ExchangeOnce(comm::Communicator* comm, RankMemory* memory, int round, const SizeOf& size) {
  const int me = comm->rank();
  const Plan send(comm->world(), round % 3, [&](int r) { return size(me, r); });
  const Plan recv(comm->world(), round % 2, [&](int r) { return size(r, me); });
  std::vector<uint8_t> out(send.total, 0xee), in(recv.total, 0xdd), expected(recv.total, 0xdd);
  for (int r = 0; r < comm->world(); ++r) {
    for (int64_t i = 0; i < send.bytes[r]; ++i) out[send.offsets[r] + i] = ByteOf(me, r, round, i);
    for (int64_t i = 0; i < recv.bytes[r]; ++i) expected[recv.offsets[r] + i] = ByteOf(r, me, round, i);
  }
  const TensorView send_view = memory->Make(DType::kU8, send.total);
  const TensorView recv_view = memory->Make(DType::kU8, recv.total);
  memory->Put(send_view, out.data());
  memory->Put(recv_view, in.data());
  ASSIGN_OR_RETURN(auto work,
                   comm->AllToAllSized({.stream = memory->stream(), .deadline = Soon()},
                                       {send_view, send.offsets, send.bytes}, {recv_view, recv.offsets, recv.bytes}));
  RETURN_IF_ERROR(work->Wait());
  RETURN_IF_ERROR(memory->Get(recv_view, in.data()));
  if (in == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("rank ", me, " received something else in round ", round));
}

template <class Elem>
absl::Status SumsOf(comm::Communicator* comm, RankMemory* memory, int64_t n) {
  const auto value = [](int rank, int64_t i) {
    const int64_t halves = (i * 3 + rank * 5) % 64;
    return std::is_integral_v<Elem> ? static_cast<double>(halves / 2) : 0.5 * static_cast<double>(halves);
  };
  std::vector<Elem> mine(n), sums(n);
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int r = 0; r < comm->world(); ++r) sum += value(r, i);
    mine[i] = static_cast<Elem>(value(comm->rank(), i));
    sums[i] = static_cast<Elem>(sum);
  }
  const comm::CommCall call{.stream = memory->stream(), .comm_class = comm::CommClass::kAllReduce, .deadline = Soon()};
  const TensorView all = memory->Make(DTypeOf<Elem>::value, n);
  memory->Put(all, mine.data());
  ASSIGN_OR_RETURN(auto reduce, comm->AllReduceSum(call, all));
  RETURN_IF_ERROR(reduce->Wait());
  RETURN_IF_ERROR(memory->Get(all, mine.data()));
  const bool same = n == 0 || std::memcmp(mine.data(), sums.data(), static_cast<size_t>(comm::NumBytes(all))) == 0;
  return same ? absl::OkStatus() : absl::DataLossError(absl::StrCat("all_reduce_sum of ", n));
}

}  // namespace

TensorView HostMemory::Make(DType dtype, int64_t elements) {
  tensors_.emplace_back(dtype, Shape({elements}));
  return tensors_.back().view();
}

void HostMemory::Put(const TensorView& to, const void* from) {
  if (!to.empty()) std::memcpy(to.raw(), from, comm::NumBytes(to));
}

absl::Status HostMemory::Get(const TensorView& from, void* to) {
  if (!from.empty()) std::memcpy(to, from.raw(), comm::NumBytes(from));
  return absl::OkStatus();
}

absl::Status CheckSizedExchanges(comm::Communicator* comm, RankMemory* memory) {
  for (int round = 0; round < 8; ++round) {
    RETURN_IF_ERROR(ExchangeOnce(comm, memory, round, [&](int from, int to) -> int64_t {
      if ((from + to + round) % 3 == 0) return 0;
      return (from * 7 + to * 3 + round * 5) % 11 * (round == 7 ? 5003 : 13);
    }));
  }
  return absl::OkStatus();
}

absl::Status CheckOneSidedExchange(comm::Communicator* comm, RankMemory* memory) {
  RETURN_IF_ERROR(ExchangeOnce(comm, memory, 0, [](int, int) -> int64_t { return 0; }));
  const int last = comm->world() - 1;
  RETURN_IF_ERROR(ExchangeOnce(comm, memory, 1, [&](int from, int) -> int64_t { return from == last ? 100 : 0; }));
  return ExchangeOnce(comm, memory, 2, [&](int, int to) -> int64_t { return to == 0 ? 100 : 0; });
}

absl::Status CheckSizedGathers(comm::Communicator* comm, RankMemory* memory) {
  for (int round = 0; round < 6; ++round) {
    const Plan parts(comm->world(), round % 3, [&](int r) { return (r + round) % 3 * (round == 5 ? 70'001 : 29); });
    std::vector<uint8_t> all(parts.total, 0xdd), expected(parts.total, 0xdd);
    for (int r = 0; r < comm->world(); ++r) {
      for (int64_t i = 0; i < parts.bytes[r]; ++i) {
        expected[parts.offsets[r] + i] = ByteOf(r, r, round, i);
        if (r == comm->rank()) all[parts.offsets[r] + i] = ByteOf(r, r, round, i);
      }
    }
    const TensorView view = memory->Make(DType::kU8, parts.total);
    memory->Put(view, all.data());
    ASSIGN_OR_RETURN(auto work, comm->AllGatherSized({.stream = memory->stream(), .deadline = Soon()},
                                                     {view, parts.offsets, parts.bytes}));
    RETURN_IF_ERROR(work->Wait());
    RETURN_IF_ERROR(memory->Get(view, all.data()));
    if (all == expected) continue;
    return absl::DataLossError(absl::StrCat("rank ", comm->rank(), " gathered something else in round ", round));
  }
  return absl::OkStatus();
}

absl::Status CheckPairs(comm::Communicator* comm, RankMemory* memory) {
  ASSIGN_OR_RETURN(auto pair, comm->Split(comm->rank() / 2, comm->rank(), Soon()));
  const comm::CommCall call{.stream = memory->stream(), .deadline = Soon()};
  for (int round = 0; round < 6; ++round) {
    const int64_t n = round % 3 == 0 ? 0 : 40'001 * round;
    std::vector<uint8_t> bytes(n, 0xdd), sent(n);
    for (int64_t i = 0; i < n; ++i) sent[i] = ByteOf(round % 2, comm->rank() / 2, round, i);
    const TensorView view = memory->Make(DType::kU8, n);
    const bool sends = pair->rank() == round % 2;
    memory->Put(view, sends ? sent.data() : bytes.data());
    comm::WorkOr work = sends ? pair->SendView(call, view) : pair->RecvView(call, view);
    if (pair->world() == 1) {
      if (!absl::IsInvalidArgument(work.status())) return absl::DataLossError("a view was sent to nobody");
      continue;
    }
    RETURN_IF_ERROR(work.status());
    RETURN_IF_ERROR((*work)->Wait());
    RETURN_IF_ERROR(memory->Get(view, bytes.data()));
    if (bytes != sent) return absl::DataLossError(absl::StrCat("rank ", comm->rank(), " in round ", round));
  }
  const int64_t launched = pair->ledger().num_launched();
  if (launched == (pair->world() == 1 ? 0 : 6)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(launched, " launches are in the pair's ledger"));
}

absl::Status CheckMesh(comm::Communicator* comm, RankMemory* memory) {
  ASSIGN_OR_RETURN(auto row, comm->Split(comm->rank() / 2, comm->rank(), Soon()));
  ASSIGN_OR_RETURN(auto column, comm->Split(comm->rank() % 2, comm->rank(), Soon()));
  const auto call = [&](comm::CommClass comm_class) {
    return comm::CommCall{.stream = memory->stream(), .comm_class = comm_class, .deadline = Soon()};
  };
  for (int64_t round = 1; round <= 4; ++round) {
    const int64_t n = round % 2 == 0 ? 30'000 : 5;
    // Sums of what each rank has: over the column, the row's of these by a gather, and over all.
    const std::vector<int64_t> ones(n, round);
    const TensorView in_column = memory->Make(DType::kI64, n), in_all = memory->Make(DType::kI64, n);
    const TensorView gathered = memory->Make(DType::kI64, row->world());
    const std::vector<int64_t> mine(row->world(), comm->rank() * round), sizes(row->world(), sizeof(int64_t));
    std::vector<int64_t> offsets;
    for (int r = 0; r < row->world(); ++r) offsets.push_back(r * static_cast<int64_t>(sizeof(int64_t)));
    memory->Put(in_column, ones.data());
    memory->Put(in_all, ones.data());
    memory->Put(gathered, mine.data());
    std::vector<std::unique_ptr<comm::Work>> works(3);
    ASSIGN_OR_RETURN(works[0], column->AllReduceSum(call(comm::CommClass::kLayerSum), in_column));
    ASSIGN_OR_RETURN(works[1], row->AllGatherSized(call(comm::CommClass::kLayerSum), {gathered, offsets, sizes}));
    ASSIGN_OR_RETURN(works[2], comm->AllReduceSum(call(comm::CommClass::kAllReduce), in_all));
    for (const auto& work : works) RETURN_IF_ERROR(work->Wait());
    std::vector<int64_t> column_sum(n), all_sum(n), of_row(row->world());
    RETURN_IF_ERROR(memory->Get(in_column, column_sum.data()));
    RETURN_IF_ERROR(memory->Get(in_all, all_sum.data()));
    RETURN_IF_ERROR(memory->Get(gathered, of_row.data()));
    bool same = column_sum == std::vector<int64_t>(n, round * column->world()) &&
                all_sum == std::vector<int64_t>(n, round * comm->world());
    for (int r = 0; r < row->world(); ++r) same &= of_row[r] == (comm->rank() / 2 * 2 + r) * round;
    if (!same) return absl::DataLossError(absl::StrCat("rank ", comm->rank(), " in round ", round));
  }
  return absl::OkStatus();
}

absl::Status CheckExactSums(comm::Communicator* comm, RankMemory* memory) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, int64_t{30'001}}) {
    RETURN_IF_ERROR(SumsOf<float>(comm, memory, n));
    RETURN_IF_ERROR(SumsOf<double>(comm, memory, n));
    RETURN_IF_ERROR(SumsOf<Bf16>(comm, memory, n));
    RETURN_IF_ERROR(SumsOf<int64_t>(comm, memory, n));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::test
