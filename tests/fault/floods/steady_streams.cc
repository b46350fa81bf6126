#include "tests/fault/floods/steady_streams.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "clients/cpp/client_error.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/http_client.h"

namespace switchyard {

std::vector<v1::GenerateRequest> SteadyStreams::Requests(int count) {
  const char* const texts[] = {"In the beginning", "The sea is", "A", "He said that the king of the"};
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(TextRequest(texts[i % 4], 700 + 20 * (i % 10)));
  return requests;
}

SteadyStreams::SteadyStreams(const TestServer& server, const std::vector<v1::GenerateRequest>& requests,
                             const std::vector<StreamSeen>& wanted, bool half_http)
    : server_(server),
      requests_(requests),
      wanted_(wanted),
      half_http_(half_http),
      last_(requests.size(), absl::InfinitePast()),
      came_(requests.size(), absl::InfinitePast()) {
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
  last_[number] = came_[number] = now;
}

void SteadyStreams::Began(size_t number) {
  absl::MutexLock lock(&mu_);
  last_[number] = absl::Now();
}

void SteadyStreams::Ended(size_t number) {
  absl::MutexLock lock(&mu_);
  last_[number] = absl::InfinitePast();
}

std::string SteadyStreams::Compare(size_t number, const std::string& text, bool is_whole) {
  const std::string& wanted = wanted_[number].choices[0].text;
  if (is_whole ? text != wanted : !absl::StartsWith(wanted, text)) return "other tokens";
  if (is_whole) ++whole_;
  if (!text.empty()) ++compared_;
  return "";
}

std::string SteadyStreams::RunOverHttp(size_t number) {
  const v1::GenerateRequest& request = requests_[number];
  HttpConnectionForTests connection(server_.http_address());
  const nlohmann::json body = {{"prompt", request.text()},
                               {"max_tokens", request.max_tokens()},
                               {"ignore_eos", true},
                               {"temperature", 0},
                               {"stream", true}};
  Began(number);
  bool sent = connection.Request("POST", "/v1/completions", body.dump());
  while (sent && !stop_ && !connection.is_ended() && !absl::EndsWith(connection.unread(), "\r\n0\r\n\r\n")) {
    if (connection.Fetch(absl::Milliseconds(100))) Came(number);
    // Refusals have no chunks.
    if (absl::StartsWith(connection.unread(), "HTTP/1.1 4")) break;
  }
  Ended(number);
  const bool is_stopped = stop_;
  const HttpAnswer answer = connection.Read(is_stopped ? absl::ZeroDuration() : absl::Seconds(5));
  if (is_stopped && answer.status == 0) return "";  // nothing has come yet
  if (answer.status == 429) {
    ++refused_;
    absl::SleepFor(absl::Milliseconds(20));
    return "";
  }
  if (answer.status != 200) return absl::StrCat("HTTP: ", answer.status, " ", answer.body.substr(0, 200));
  std::string text;
  for (const std::string& event : answer.Events()) {
    const nlohmann::json message = nlohmann::json::parse(event, nullptr, /*allow_exceptions=*/false);
    if (message.contains("error")) return absl::StrCat("HTTP: ended: ", event);
    if (message.contains("choices")) text += message["choices"][0].value("text", "");
  }
  if (!answer.is_whole && !is_stopped) return "HTTP: an answer without its end";
  return Compare(number, text, answer.is_whole);
}

std::string SteadyStreams::RunOnce(client::Client& client, size_t number) {
  StreamSeen seen;
  Began(number);
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
  Ended(number);
  const bool is_stopped = stop_ && absl::IsCancelled(seen.end);
  if (seen.choices.empty() && client::Describe(seen.end).reason == "TOO_MANY_STREAMS") {
    // The flood holds all places; a client tries again.
    ++refused_;
    absl::SleepFor(absl::Milliseconds(20));
    return "";
  }
  if (!seen.end.ok() && !is_stopped) {
    return absl::StrCat(seen.choices.empty() ? "refused: " : "ended: ", client::Describe(seen.end).reason, " ",
                        seen.end.message());
  }
  if (!seen.fault.empty()) return seen.fault;
  if (seen.choices.empty()) return is_stopped ? "" : "no choice";
  std::vector<int32_t> wanted = wanted_[number].choices[0].token_ids;
  const std::vector<int32_t>& got = seen.choices[0].token_ids;
  if (is_stopped && got.size() < wanted.size()) wanted.resize(got.size());
  if (seen.choices.size() != 1 || got != wanted) return "other tokens";
  return Compare(number, seen.choices[0].text, !is_stopped);
}

void SteadyStreams::Run(size_t number) {
  const auto client = server_.Connect(absl::Seconds(280));
  while (client != nullptr && !stop_) {
    const std::string fault = half_http_ && number % 2 == 1 ? RunOverHttp(number) : RunOnce(*client, number);
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
    return std::all_of(came_.begin(), came_.end(), [from](absl::Time last) { return last > from; });
  };
  return mu_.AwaitWithTimeout(absl::Condition(&all), limit);
}

std::map<std::string, int> SteadyStreams::faults() {
  absl::MutexLock lock(&mu_);
  return faults_;
}

}  // namespace switchyard
