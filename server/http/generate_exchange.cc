#include "server/http/generate_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/peer_name.h"
#include "server/engine/token_stream.h"

namespace switchyard::server {
namespace {

constexpr char kPing[] = ": ping\n\n";  // a comment of server-sent events, so that nobody takes silence for an end

class GenerateExchange : public std::enable_shared_from_this<GenerateExchange> {
 public:
  GenerateExchange(RequestContext* request_context, std::shared_ptr<HttpExchange> exchange,
                   const absl::StatusOr<Caller>& caller, std::unique_ptr<ResponseWriter> writer)
      : request_context_(request_context),
        exchange_(std::move(exchange)),
        caller_(caller),
        observed_(ObserveHttp(*request_context, exchange_->request(), caller)),
        writer_(std::move(writer)) {
    generations_.push_back(NewGeneration());
    first_ = generations_.front().get();
  }

  void Start() {
    if (const absl::Status room = generations_.front()->Enter(); !room.ok()) return Fail(room);
    exchange_->SetEvents({.on_written = [own = shared_from_this()] { own->Pump(); },
                          .on_gone = [own = shared_from_this()](bool is_slow) { own->OnGone(is_slow); },
                          .on_quiet = [own = shared_from_this()] { own->OnQuiet(); }});
    const std::string client = caller_->name.empty() ? FrontClientOfPeer(exchange_->request().peer) : caller_->name;
    request_context_->pool->Post(
        {.client = client,
         .bytes = static_cast<int64_t>(exchange_->request().body.size()),
         .run = [own = shared_from_this()] { own->Prepare(); },
         .refuse = [own = shared_from_this()](
                       const absl::Status& why) { own->exchange_->Post([own, why] { own->Fail(why); }); }});
  }

 private:
  std::unique_ptr<Generation> NewGeneration() {
    return std::make_unique<Generation>(request_context_, caller_, exchange_->request().peer, observed_);
  }

  // On the front pool.  Nobody else uses generations_ and writer_ until what it posts at the end runs.
  void Prepare() {
    const absl::Status status = [this]() -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<v1::GenerateRequest> requests, writer_->Parse(exchange_->request().body));
      if (observed_ != nullptr) observed_->SetStream(writer_->streams());
      for (size_t i = 0; i < requests.size(); ++i) {
        if (gone_.load()) return absl::CancelledError("the client is gone");
        if (i > 0) {
          generations_.push_back(NewGeneration());
          RETURN_IF_ERROR(generations_.back()->Enter());
        }
        RETURN_IF_ERROR(generations_.back()->Prepare(
            [&](v1::GenerateRequest* message) {
              message->Swap(&requests[i]);
              writer_->Complete(message);
              return absl::OkStatus();
            },
            [&](std::shared_ptr<const ServedModel>* model) -> absl::StatusOr<ConvertArgs> {
              ASSIGN_OR_RETURN(ConvertArgs args, request_context_->Args(std::nullopt, model));
              args.output = writer_.get();
              return args;
            }));
        writer_->SetPromptTokens(i, generations_.back()->prompt_tokens());
      }
      return absl::OkStatus();
    }();
    exchange_->Post([own = shared_from_this(), status] {
      own->prepared_ = true;
      own->exchange_->DropBody();
      if (!status.ok()) return own->Fail(status);
      if (own->gone_.load()) return own->Stop(absl::CancelledError("the client is gone"));
      for (const auto& generation : own->generations_) generation->Attach([own] { own->PostPump(); });
      own->Pump();
    });
  }

  // On the engine's thread.
  void PostPump() {
    if (pump_posted_.exchange(true)) return;
    exchange_->Post([own = shared_from_this()] { own->Pump(); });
  }

  void Pump() {
    pump_posted_.store(false);
    if (!prepared_ || over_) return;
    // A slow reader's messages wait in their streams, which join them.
    if (writer_->streams() && exchange_->is_writing()) return;
    std::string events;
    bool finished = true;
    for (size_t i = 0; i < generations_.size(); ++i) {
      absl::Status end;
      if (generations_[i]->Finished(&end) && !end.ok()) return FailOfEngine(end);
      while (const std::unique_ptr<v1::GenerateResponse> message = generations_[i]->Next()) {
        events += writer_->Add(i, *message);
      }
      const bool ended = generations_[i]->Finished(&end);
      if (ended && !end.ok()) return FailOfEngine(end);
      finished = finished && ended;
    }
    if (!finished) {
      if (writer_->streams() && !events.empty()) Send(std::move(events));
      return;
    }
    if (writer_->streams()) {
      SendLast(events + writer_->Finish());
    } else {
      NoteStatus(200);
      exchange_->Reply({.body = writer_->Finish()});
    }
    Stop(absl::OkStatus());
  }

  void Send(std::string events) {
    if (std::exchange(begun_, true)) return exchange_->Write(std::move(events));
    NoteStatus(200);
    exchange_->Begin({.type = "text/event-stream; charset=utf-8",
                      .body = std::move(events),
                      .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  }

  void SendLast(std::string events) {
    if (begun_) return exchange_->End(std::move(events));
    Send(std::move(events));
    exchange_->End();
  }

  void OnQuiet() {
    if (prepared_ && !over_ && writer_->streams() && !exchange_->is_writing()) Send(kPing);
  }

  void OnGone(bool is_slow) {
    gone_.store(true);
    const absl::Status why = is_slow ? SlowReader(request_context_->config->slow_client_timeout)
                                     : absl::CancelledError("the client is gone");
    if (!prepared_) return first_->Cancel(why, /*by_client=*/false);
    // The engine has counted errors, and counts the requests that it still runs, as it ends them.
    const bool complete = std::all_of(generations_.begin(), generations_.end(), [](const auto& each) {
      const std::optional<absl::Status> end = each->end();
      return end.has_value() && end->ok();
    });
    if (is_slow && complete) Count(why);
    Stop(why);
  }

  // Counts the call's error, unless it is counted.
  void Count(const absl::Status& status) {
    if (!std::exchange(counted_, true)) request_context_->metrics->request_error(status.code()).Increment();
  }

  void FailOfEngine(const absl::Status& status) {
    counted_ = true;  // by the engine
    Fail(status);
  }

  void Fail(const absl::Status& status) {
    if (over_) return;
    Count(status);
    if (begun_) {
      SendLast(writer_->Fail(status));
    } else if (!gone_.load()) {
      NoteStatus(HttpStatusOf(status));
      exchange_->Reply(ErrorReply(writer_->error_shape(), status));
    }
    // (Requests of other prompts have not failed themselves, and are not counted as if they had.)
    Stop(status, absl::CancelledError("the call has failed"));
  }

  void NoteStatus(int status) {
    if (observed_ != nullptr) observed_->SetHttpStatus(status);
  }

  void Stop(const absl::Status& status) { Stop(status, status); }

  // Ends all that still runs, with `rest`.  The exchange's events hold this object; they are dropped by its end.
  void Stop(const absl::Status& status, const absl::Status& rest) {
    if (std::exchange(over_, true)) return;
    for (const auto& generation : generations_) {
      generation->Attach(nullptr);
      generation->SetEnd(status.code());
      absl::Status end;
      if (!status.ok() && !generation->Finished(&end)) generation->Cancel(rest, /*by_client=*/false);
    }
    generations_.clear();
    if (observed_ != nullptr) observed_->SetEnd(status, MonotonicNow());
    observed_ = nullptr;
  }

  RequestContext* const request_context_;
  const std::shared_ptr<HttpExchange> exchange_;  // with its connection
  const absl::StatusOr<Caller> caller_;
  std::shared_ptr<ObservedRequest> observed_;  // shared: with the generations and the engine; or null
  std::unique_ptr<ResponseWriter> writer_;
  std::vector<std::unique_ptr<Generation>> generations_;  // of the prompts
  Generation* first_;
  std::atomic<bool> gone_{false}, pump_posted_{false};
  // On the strand:
  bool prepared_ = false, begun_ = false, over_ = false;
  bool counted_ = false;  // among the errors
};

}  // namespace

std::shared_ptr<ObservedRequest> ObserveHttp(const RequestContext& request_context, const HttpRequest& request,
                                             const absl::StatusOr<Caller>& caller) {
  if (request_context.observer == nullptr) return nullptr;
  return request_context.observer->Begin({.protocol = CallProtocol::kHttp,
                                          .api = request.path,
                                          .key = caller.ok() ? caller->name : "",
                                          .client = AddressOfPeer(request.peer),
                                          .model = request_context.config->served_model_name,
                                          .arrival = MonotonicNow(),
                                          .traceparents = request.Values(kTraceparent),
                                          .tracestates = request.Values(kTracestate)});
}

void AnswerByGenerating(RequestContext* request_context, const std::shared_ptr<HttpExchange>& exchange,
                        const absl::StatusOr<Caller>& caller, std::unique_ptr<ResponseWriter> writer) {
  std::make_shared<GenerateExchange>(request_context, exchange, caller, std::move(writer))->Start();
}

}  // namespace switchyard::server
