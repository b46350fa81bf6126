// Measures an exchange between processes on loopback, and an all-gather of few bytes, sent directly to every rank
// (class control) and in rounds: one line per size, with the CPU time of rank 0; then exchanges over plain and over
// encrypted links, in turns.  Not a test: run by hand.
//   exchange_latency [world] [rounds]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "tests/workers/comm/comm_test_util.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard::comm {
namespace {

double CpuMicros() {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void Gather(Communicator* comm, CommClass comm_class, int64_t bytes, int rounds) {
  const std::string mine(static_cast<size_t>(bytes), 'x');
  std::vector<double> micros;
  const double cpu = CpuMicros();
  for (int i = 0; i < rounds; ++i) {
    const absl::Time start = absl::Now();
    auto work = comm->AllGather({.comm_class = comm_class, .deadline = start + absl::Seconds(10)}, mine);
    SY_CHECK_OK(work.status());
    SY_CHECK_OK((*work)->Wait());
    micros.push_back(absl::ToDoubleMicroseconds(absl::Now() - start));
  }
  const double used = (CpuMicros() - cpu) / rounds;
  std::sort(micros.begin(), micros.end());
  if (comm->rank() != 0) return;
  std::printf("gather of %5lld bytes a rank, class %s: median %7.1f us, p90 %7.1f us, cpu %7.1f us\n",
              static_cast<long long>(bytes), CommClassName(comm_class), micros[micros.size() / 2],
              micros[micros.size() * 9 / 10], used);
}

std::unique_ptr<Communicator> Form(int rank, int world, bool encrypt, test::DirectoryStore* store) {
  const absl::Time begin = absl::Now();
  const GroupOptions options = {.rank = rank,
                                .world = world,
                                .epoch = 1,
                                .token = encrypt ? "encrypted" : "plain",
                                .address = "127.0.0.1",
                                .deadline = absl::Now() + absl::Seconds(10),
                                .encrypt_links = encrypt};
  auto group = FormSocketGroup({.group = options}, store);
  SY_CHECK_OK(group.status());
  if (rank == 0) {
    std::printf("forming %s links %.1f ms\n", encrypt ? "encrypted" : "plain",
                absl::ToDoubleMilliseconds(absl::Now() - begin));
  }
  return *std::move(group);
}

double ExchangeMicros(Communicator* comm, int64_t bytes) {
  std::vector<Message> out(static_cast<size_t>(comm->world()));
  for (Message& message : out) message = comm->NewMessage(bytes);
  const absl::Time start = absl::Now();
  auto work = comm->AllToAllV({.deadline = start + absl::Seconds(10)}, std::move(out));
  SY_CHECK_OK(work.status());
  SY_CHECK_OK((*work)->Wait());
  return absl::ToDoubleMicroseconds(absl::Now() - start);
}

// One exchange over plain links, one over encrypted ones, and so on.
void Compare(Communicator* plain, Communicator* encrypted, int rounds) {
  for (const int64_t bytes : {int64_t{64}, int64_t{4096}, int64_t{65536}, int64_t{1} << 20, int64_t{4} << 20}) {
    std::vector<double> micros[2];
    double cpu[2] = {};
    const int count = bytes > 100'000 ? std::max(rounds / 20, 5) : rounds;
    for (int i = 0; i < 2 * count; ++i) {
      const double before = CpuMicros();
      micros[i % 2].push_back(ExchangeMicros(i % 2 == 0 ? plain : encrypted, bytes));
      cpu[i % 2] += CpuMicros() - before;
    }
    if (plain->rank() != 0) continue;
    std::printf("%8lld bytes a peer:", static_cast<long long>(bytes));
    for (int k = 0; k < 2; ++k) {
      std::sort(micros[k].begin(), micros[k].end());
      const double median = micros[k][micros[k].size() / 2];
      std::printf("  %s %8.1f us, %7.1f MB/s, cpu %7.1f us", k == 0 ? "plain" : "encrypted", median,
                  static_cast<double>(bytes * (plain->world() - 1)) / median, cpu[k] / count);
    }
    std::printf("\n");
  }
}

void RunRank(int rank, int world, int rounds, const std::string& directory) {
  test::DirectoryStore store(directory);
  const std::unique_ptr<Communicator> plain = Form(rank, world, false, &store);
  const std::unique_ptr<Communicator> encrypted = Form(rank, world, true, &store);
  Communicator* const comm = plain.get();
  for (const int64_t bytes : {64, 200, 1024, 4096}) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      Gather(comm, CommClass::kControl, bytes, rounds);
      Gather(comm, CommClass::kAllToAll, bytes, rounds);
    }
  }
  for (const int64_t bytes : {int64_t{64}, int64_t{4096}, int64_t{65536}, int64_t{1} << 20, int64_t{4} << 20}) {
    const int count = bytes > 100'000 ? std::max(rounds / 20, 5) : rounds;
    std::vector<double> micros;
    const double cpu = CpuMicros();
    for (int i = 0; i < count; ++i) micros.push_back(ExchangeMicros(comm, bytes));
    const double used = (CpuMicros() - cpu) / count;
    std::sort(micros.begin(), micros.end());
    if (rank == 0) {
      std::printf("%8lld bytes a peer: median %7.1f us, p90 %7.1f us, cpu %7.1f us\n", static_cast<long long>(bytes),
                  micros[micros.size() / 2], micros[micros.size() * 9 / 10], used);
    }
  }
  Compare(plain.get(), encrypted.get(), rounds);
}

}  // namespace
}  // namespace switchyard::comm

int main(int argc, char** argv) {
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 2000;
  char directory[] = "/tmp/sy_exchange_XXXXXX";
  SY_CHECK(mkdtemp(directory) != nullptr);
  std::vector<pid_t> children;
  for (int rank = 1; rank < world; ++rank) {
    const pid_t pid = fork();
    SY_CHECK_GE(pid, 0);
    if (pid == 0) {
      switchyard::comm::RunRank(rank, world, rounds, directory);
      return 0;
    }
    children.push_back(pid);
  }
  switchyard::comm::RunRank(0, world, rounds, directory);
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  (void)!std::system(absl::StrCat("rm -r ", directory).c_str());
  return 0;
}
