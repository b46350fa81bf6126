#include "server/observe/otlp_exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/log.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::server {
namespace {

constexpr char kTracesPath[] = "/v1/traces";
constexpr absl::Duration kBetweenOtlpWarnings = absl::Minutes(1), kLongestPause = absl::Seconds(30);

std::string UrlOf(absl::string_view endpoint) {
  while (absl::ConsumeSuffix(&endpoint, "/")) {
  }
  return absl::EndsWith(endpoint, kTracesPath) ? std::string(endpoint) : absl::StrCat(endpoint, kTracesPath);
}

// Returns how many spans an answer says were not taken, and why: {"partialSuccess": {"rejectedSpans": "2", …}}.
int64_t RejectedSpans(const std::string& body, std::string* why) {
  const auto answer = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("partialSuccess") || !answer["partialSuccess"].is_object()) return 0;
  const auto& partial = answer["partialSuccess"];
  if (const auto at = partial.find("errorMessage"); at != partial.end() && at->is_string())
    *why = at->get<std::string>();
  const auto at = partial.find("rejectedSpans");
  int64_t spans = 0;
  if (at == partial.end()) return 0;
  if (at->is_number_integer()) return at->get<int64_t>();
  return at->is_string() && absl::SimpleAtoi(at->get<std::string>(), &spans) ? spans : 0;
}

}  // namespace

absl::Status OtlpExporter::CheckEndpoint(const std::string& endpoint) { return HttpPost::CheckUrl(endpoint); }

OtlpExporter::OtlpExporter(Options options) : options_(std::move(options)), post_(UrlOf(options_.endpoint)) {
  thread_ = std::thread([this] { Run(); });
}

OtlpExporter::~OtlpExporter() { Stop(); }

void OtlpExporter::Add(std::shared_ptr<const RequestRecord> record) {
  const int64_t spans = NumSpans(*record);
  {
    absl::MutexLock lock(&mu_);
    if (!stopping_ && waiting_spans_ + spans <= options_.most_waiting_spans) {
      waiting_spans_ += spans;
      waiting_.push_back(std::move(record));
      return;
    }
  }
  options_.on_spans(Result::kDropped, spans);
}

void OtlpExporter::Stop(absl::Duration limit) {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    deadline_ = std::min(deadline_, MonotonicNow() + limit);
  }
  if (thread_.joinable()) thread_.join();
}

void OtlpExporter::Run() {
  for (Batch batch = NextBatch(); !batch.empty(); batch = NextBatch()) Send(batch);
}

OtlpExporter::Batch OtlpExporter::NextBatch() {
  const auto has_any = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !waiting_.empty() || stopping_; };
  const auto is_full = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return waiting_spans_ >= options_.spans_in_batch || stopping_;
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&has_any));
  mu_.AwaitWithTimeout(absl::Condition(&is_full), options_.batch_delay);
  Batch batch;
  for (int64_t spans = 0; !waiting_.empty() && spans < options_.spans_in_batch;) {
    const int64_t more = NumSpans(*waiting_.front());
    spans += more;
    waiting_spans_ -= more;
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return batch;
}

void OtlpExporter::Send(const Batch& batch) {
  int64_t spans = 0;
  for (const auto& record : batch) spans += NumSpans(*record);
  const std::string body = OtlpBody(options_.resource, batch, options_.random);
  const int tries = is_reachable_ ? options_.most_tries : 1;
  absl::Duration pause = options_.first_pause;
  absl::Status status;
  for (int i = 0; i < tries; ++i) {
    absl::Duration wanted = absl::ZeroDuration();
    status = Try(body, spans, &wanted);
    if (!absl::IsUnavailable(status) || i + 1 == tries) break;
    if (!Pause(std::min(std::max(pause, wanted), kLongestPause))) break;
    pause *= 2;
  }
  is_reachable_ = !absl::IsUnavailable(status);
  if (status.ok()) return;
  options_.on_spans(Result::kFailed, spans);
  Warn(status);
}

absl::Status OtlpExporter::Try(const std::string& body, int64_t spans, absl::Duration* pause) {
  const absl::StatusOr<HttpPost::Reply> reply =
      post_.Send("application/json", body, options_.timeout, [this] { return IsOver(); });
  if (!reply.ok()) return reply.status();
  *pause = reply->retry_after;
  const std::string answer = absl::StrCat("it answered ", reply->status, " ", Quote(reply->body.substr(0, 200)));
  for (const int busy : {429, 502, 503, 504}) {
    if (reply->status == busy) return absl::UnavailableError(answer);
  }
  if (reply->status / 100 != 2) return absl::InternalError(answer);
  std::string why;
  const int64_t rejected = std::clamp<int64_t>(RejectedSpans(reply->body, &why), 0, spans);
  options_.on_spans(Result::kSent, spans - rejected);
  if (rejected > 0) {
    options_.on_spans(Result::kFailed, rejected);
    Warn(absl::InternalError(absl::StrCat("it rejected ", rejected, " spans: ", Quote(why.substr(0, 200)))));
  }
  return absl::OkStatus();
}

bool OtlpExporter::Pause(absl::Duration pause) {
  absl::MutexLock lock(&mu_);
  return !mu_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
}

// A batch's loss is worth a line, but not one for each batch while the collector is down.
void OtlpExporter::Warn(const absl::Status& status) {
  const absl::Time now = MonotonicNow();
  if (now < next_warning_) return;
  next_warning_ = now + kBetweenOtlpWarnings;
  LogWarn("--otlp_endpoint=", options_.endpoint, ": spans are lost: ", status.message());
}

}  // namespace switchyard::server
