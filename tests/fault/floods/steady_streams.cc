#include "tests/fault/floods/steady_streams.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client_error.h"

namespace switchyard {

std::vector<v1::GenerateRequest> SteadyStreams::Requests(int count) {
  const char* const texts[] = {"In the beginning", "The sea is", "A", "He said that the king of the"};
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(TextRequest(texts[i % 4], 700 + 20 * (i % 10)));
  return requests;
}

SteadyStreams::SteadyStreams(const TestServer& server, const std::vector<v1::GenerateRequest>& requests,
                             const std::vector<StreamSeen>& wanted)
    : server_(server), requests_(requests), wanted_(wanted), last_(requests.size(), absl::InfinitePast()) {
  for (size_t i = 0; i < requests.size(); ++i) threads_.emplace_back([this, i] { Run(i); });
}

void SteadyStreams::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void SteadyStreams::Came(size_t number) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  gaps_.push_back({now, now - last_[number]});
  last_[number] = now;
}

std::string SteadyStreams::RunOnce(client::Client& client, size_t number) {
  StreamSeen seen;
  {
    absl::MutexLock lock(&mu_);
    last_[number] = absl::Now();
  }
  const auto stream = client.StartGenerate(requests_[number], {.on_message =
                                                                   [&](const v1::GenerateResponse& message) {
                                                                     seen.Add(message);
                                                                     Came(number);
                                                                   },
                                                               .on_done = nullptr});
  while (!stream->Done()) {
    if (stop_) stream->Cancel();
    absl::SleepFor(absl::Milliseconds(5));
  }
  seen.end = stream->Wait();
  {
    absl::MutexLock lock(&mu_);
    last_[number] = absl::InfinitePast();
  }
  if (stop_) return "";
  if (seen.choices.empty() && client::Describe(seen.end).reason == "TOO_MANY_STREAMS") {
    // The flood holds all places; a client tries again.
    ++refused_;
    absl::SleepFor(absl::Milliseconds(20));
    return "";
  }
  if (!seen.end.ok()) {
    return absl::StrCat(seen.choices.empty() ? "refused: " : "ended: ", client::Describe(seen.end).reason, " ",
                        seen.end.message());
  }
  if (!seen.fault.empty()) return seen.fault;
  const StreamSeen& wanted = wanted_[number];
  const bool is_same = seen.choices.size() == 1 && seen.choices[0].token_ids == wanted.choices[0].token_ids &&
                       seen.choices[0].text == wanted.choices[0].text;
  if (is_same) ++whole_;
  return is_same ? "" : "other tokens";
}

void SteadyStreams::Run(size_t number) {
  const auto client = server_.Connect(absl::Seconds(280));
  while (client != nullptr && !stop_) {
    const std::string fault = RunOnce(*client, number);
    if (fault.empty()) continue;
    {
      absl::MutexLock lock(&mu_);
      ++faults_[fault];
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
}

Gaps SteadyStreams::GapsSince(absl::Time from) {
  std::vector<absl::Duration> lengths;
  {
    absl::MutexLock lock(&mu_);
    for (auto gap = gaps_.rbegin(); gap != gaps_.rend() && gap->end >= from; ++gap) lengths.push_back(gap->length);
    const absl::Time now = absl::Now();
    for (const absl::Time last : last_) {
      if (last != absl::InfinitePast()) lengths.push_back(now - last);
    }
  }
  if (lengths.empty()) return {};
  std::sort(lengths.begin(), lengths.end());
  return {lengths[lengths.size() / 2], lengths[lengths.size() * 99 / 100], lengths.back(),
          static_cast<int64_t>(lengths.size())};
}

bool SteadyStreams::AwaitAll(absl::Time from, absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(last_.begin(), last_.end(), [from](absl::Time last) { return last > from; });
  };
  return mu_.AwaitWithTimeout(absl::Condition(&all), limit);
}

std::map<std::string, int> SteadyStreams::faults() {
  absl::MutexLock lock(&mu_);
  return faults_;
}

}  // namespace switchyard
