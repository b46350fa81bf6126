// An all-to-all among three ranks, which are threads here: each sends every other a letter of its own.
// The same calls go over sockets (comm/tcp) or NCCL where ranks are processes.
#include <algorithm>
#include <iostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "workers/comm/local/local_communicator.h"

using namespace switchyard;

void RunRank(comm::Communicator* comm) {
  std::vector<comm::Message> out;
  for (int to = 0; to < comm->world(); ++to) {
    const std::string letter = absl::StrCat("from ", comm->rank(), " to ", to, std::string(to, '!'));  // any length
    out.push_back(comm->NewMessage(static_cast<int64_t>(letter.size())));
    std::copy(letter.begin(), letter.end(), out.back().payload());
  }
  auto work = comm->AllToAllV({.deadline = absl::Now() + absl::Seconds(30)}, std::move(out));  // started …
  SY_CHECK_OK(work.status());
  SY_CHECK_OK((*work)->Wait());  // … and finished: code between the two runs during the exchange
  for (int from = 0; from < comm->world(); ++from) {
    const comm::Message& got = (*work)->received()[from];
    const std::string expected = absl::StrCat("from ", from, " to ", comm->rank(), std::string(comm->rank(), '!'));
    SY_CHECK_EQ(std::string(got.payload(), got.bytes()), expected);
  }
}

int main() {
  auto ranks = comm::MakeLocalGroup(3);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back(RunRank, rank.get());
  for (std::thread& thread : threads) thread.join();
  std::cout << "every letter has come, by " << ranks[0]->ledger().num_launched() << " collective\n";
}
