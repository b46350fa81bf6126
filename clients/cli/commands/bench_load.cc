#include "clients/cli/commands/bench_load.h"

#include <cmath>
#include <deque>
#include <memory>
#include <random>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "clients/cpp/client.h"
#include "clients/cpp/client_error.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {
namespace {

// One request under way; the stream's callbacks write the sample until they have called `on_end`.
class Probe {
 public:
  Probe(client::Client* client, const v1::GenerateRequest& request, absl::Time arrival, std::function<void()> on_end)
      : arrival_(arrival), on_end_(std::move(on_end)) {
    stream_ =
        client->StartGenerate(request, {.on_message = [this](const v1::GenerateResponse& message) { See(message); },
                                        .on_done = [this](const absl::Status& status) { End(status); }});
  }
  bool Done() const { return stream_->Done(); }
  const Sample& Wait() {
    (void)stream_->Wait();  // the sample contains the error
    return sample_;
  }

 private:
  void See(const v1::GenerateResponse& message) {
    const absl::Time now = absl::Now();
    const int tokens = message.token_ids_size();
    if (message.has_finish()) sample_.num_prompt_tokens = message.finish().usage().prompt_tokens();
    if (tokens == 0) return;
    if (sample_.num_tokens == 0) {
      sample_.first_token = now - arrival_;
    } else {
      const double gap = absl::ToDoubleSeconds(now - last_) / tokens;
      sample_.gap_seconds.insert(sample_.gap_seconds.end(), static_cast<size_t>(tokens), gap);
    }
    sample_.num_tokens += tokens;
    last_ = now;
  }
  void End(const absl::Status& status) {
    sample_.total = absl::Now() - arrival_;
    if (!status.ok()) sample_.error = client::Describe(status).reason;
    on_end_();
  }

  const absl::Time arrival_;
  const std::function<void()> on_end_;
  Sample sample_;
  absl::Time last_;
  std::unique_ptr<client::GenerateStream> stream_;  // last, so that it ends before the members that its callbacks use
};

class Load {
 public:
  Load(client::Client* client, const LoadSpec& spec, const std::function<v1::GenerateRequest(int)>& make_request)
      : client_(client), spec_(spec), make_request_(make_request) {}

  LoadResult Run() {
    start_ = absl::Now();
    spec_.rate_per_second > 0 ? OpenLoop() : ClosedLoop();
    Collect(/*all=*/true);
    result_.elapsed = absl::Now() - start_;
    return std::move(result_);
  }

 private:
  void OpenLoop() {
    for (absl::Duration offset : PoissonArrivals(spec_)) {
      const absl::Time arrival = start_ + offset;
      absl::SleepFor(arrival - absl::Now());
      Collect(/*all=*/false);
      if (UnderWay() >= kMaxUnderWay) {
        probes_.push_back(nullptr);  // keeps its place in the order
      } else {
        Start(arrival);
      }
    }
  }

  void ClosedLoop() {
    for (int i = 0; spec_.num_requests == 0 || i < spec_.num_requests; ++i) {
      {
        absl::MutexLock lock(&mu_);
        const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_ < spec_.concurrency; };
        mu_.Await(absl::Condition(&has_room));  // bounded by the requests' own time limits
      }
      if (absl::Now() - start_ >= spec_.duration) return;
      Collect(/*all=*/false);
      Start(absl::Now());
    }
  }

  void Start(absl::Time arrival) {
    {
      absl::MutexLock lock(&mu_);
      ++under_way_;
    }
    const auto on_end = [this] {
      absl::MutexLock lock(&mu_);
      --under_way_;
    };
    probes_.push_back(std::make_unique<Probe>(client_, make_request_(num_started_++), arrival, on_end));
  }

  // Collects the samples of ended requests from the front of the queue; with `all` waits for all requests.
  void Collect(bool all) {
    while (!probes_.empty() && (all || probes_.front() == nullptr || probes_.front()->Done())) {
      if (probes_.front() == nullptr) {
        result_.samples.emplace_back();
        result_.samples.back().error = "CLIENT_LIMIT";
      } else {
        result_.samples.push_back(probes_.front()->Wait());
      }
      probes_.pop_front();
    }
  }

  int UnderWay() {
    absl::MutexLock lock(&mu_);
    return under_way_;
  }

  client::Client* const client_;
  const LoadSpec spec_;
  const std::function<v1::GenerateRequest(int)>& make_request_;
  LoadResult result_;
  absl::Time start_;
  int num_started_ = 0;
  absl::Mutex mu_;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::unique_ptr<Probe>>
      probes_;  // in the order of arrival; last, since their callbacks use the members above
};

}  // namespace

std::vector<absl::Duration> PoissonArrivals(const LoadSpec& spec) {
  std::mt19937_64 random(spec.seed);  // the same arrivals for the same seed on every machine
  std::vector<absl::Duration> arrivals;
  double seconds = 0;
  while (spec.num_requests == 0 || arrivals.size() < static_cast<size_t>(spec.num_requests)) {
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1.0p-53;  // (0, 1)
    seconds -= std::log(uniform) / spec.rate_per_second;
    if (absl::Seconds(seconds) >= spec.duration) break;
    arrivals.push_back(absl::Seconds(seconds));
  }
  return arrivals;
}

LoadResult RunLoad(client::Client* client, const LoadSpec& spec,
                   const std::function<v1::GenerateRequest(int)>& make_request) {
  return Load(client, spec, make_request).Run();
}

}  // namespace switchyard::cli
