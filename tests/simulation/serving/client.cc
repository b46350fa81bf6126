#include "tests/simulation/serving/client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "server/fleet/server_stall.h"
#include "tests/simulation/serving/token_model.h"

namespace switchyard::simulation {
namespace {

// How long a message and the news that it was read are on their way, at most.
constexpr absl::Duration kOnTheWay = absl::Milliseconds(5);

}  // namespace

Client::Client(World* world, ServerProcess* server, Wish wish, int32_t max_context)
    : world_(*world), server_(*server), wish_(std::move(wish)), max_context_(max_context) {}

std::string Client::name() const { return absl::StrCat("request ", wish_.id); }

absl::Duration Client::Latency() { return world_.random().Skewed(absl::Microseconds(20), absl::Milliseconds(3)); }

void Client::Later(absl::Duration delay, World::Action action) {
  world_.After(delay, [this, call = calls_, action = std::move(action)]() mutable {
    if (open_ && call == calls_) action();
  });
}

void Client::Begin() {
  world_.Note(name(), ": comes, n ", wish_.num_choices, ", prompt ", wish_.prompt.size(), ", most ", wish_.max_tokens);
  Call();
}

void Client::Call() {
  ++calls_;
  open_ = true;
  cancelled_ = aborted_ = popping_ = false;
  window_ = true;
  messages_ = 0;
  handle_ = 0;
  called_ = world_.now();
  stops_before_ = server_.num_stops();
  choices_.assign(static_cast<size_t>(wish_.num_choices), {});
  batching::SamplingParams sampling;
  sampling.temperature = 0;
  sampling.seed = wish_.seed;
  sampling.stop_ids = {kStopId};
  sampling.num_logprobs = wish_.logprobs ? 0 : -1;
  const auto constraint = wish_.constrained ? MakeConstraint() : nullptr;
  for (int c = 0; c < wish_.num_choices; ++c) {
    sampling.choice = static_cast<uint32_t>(c);
    choices_[c].expected = UndisturbedOutputs(wish_.prompt, sampling, wish_.max_tokens, max_context_, constraint);
  }
  stream_ = std::make_shared<server::TokenStream>();
  auto request = std::make_unique<server::InferenceRequest>();
  request->request_id = name();
  request->prompt = wish_.prompt;
  request->max_tokens = wish_.max_tokens;
  request->num_choices = wish_.num_choices;
  request->sampling = sampling;
  request->constraint = wish_.constrained ? MakeConstraint() : nullptr;
  request->end_ids = {kStopId};
  request->deadline = called_ + std::min(wish_.deadline, absl::Duration(absl::Minutes(5)));
  request->has_text = false;
  Later(Latency(), [this, request = std::move(request)]() mutable {
    if (!server_.alive()) return EndCall(absl::UnavailableError("connection refused"));
    server_.Soon([this, call = calls_, request = std::move(request)]() mutable {
      if (!open_ || call != calls_) return;
      if (!server_.listens()) return EndCall(absl::UnavailableError("connection refused"));
      if (cancelled_) return EndCall(absl::CancelledError("the client is gone"));
      request->arrival = world_.now();
      handle_ = server_.engine().NextHandle();
      server_.engine().Submit(handle_, std::move(request), stream_);
      stream_->Attach([this] { PopSoon(); });
      server_.WakeEngine();
    });
  });
  if (wish_.cancel_after == absl::InfiniteDuration()) return;
  Later(wish_.cancel_after, [this] {
    (wish_.aborts ? aborted_ : cancelled_) = true;
    if (!server_.alive()) return;
    server_.Soon([this, call = calls_] {
      if (!open_ || call != calls_) return;
      if (wish_.aborts) {
        server_.engine().Abort(name(), [](bool) {});
      } else if (handle_ != 0) {
        server_.engine().Cancel(handle_, absl::CancelledError("the client is gone"));
      }
      server_.WakeEngine();
    });
  });
}

// The server's reactor: sends a message whenever the client has read the last one.
void Client::PopSoon() {
  if (popping_) return;
  popping_ = true;
  server_.Soon([this, call = calls_] {
    if (!open_ || call != calls_) return;
    popping_ = false;
    Pop();
  });
}

void Client::Pop() {
  if (!window_) return;
  std::optional<server::OutputChunk> chunk = stream_->Pop(world_.now());
  absl::Status status;
  if (!chunk.has_value() && !stream_->Finished(&status)) return;
  window_ = false;
  next_arrival_ = std::max(next_arrival_, world_.now() + Latency());
  if (!chunk.has_value()) {
    Later(next_arrival_ - world_.now(), [this, status] { EndCall(status); });
    return;
  }
  absl::Duration pause = wish_.read_pause;
  if (messages_++ == wish_.stall_at) pause += wish_.stall;
  Later(next_arrival_ - world_.now() + pause, [this, chunk = std::move(*chunk)]() mutable {
    Read(std::move(chunk));
    window_ = true;
    PopSoon();
  });
}

void Client::Read(server::OutputChunk chunk) {
  world_.Note(name(), ": choice ", chunk.choice, " tokens [", chunk.index, ", +", chunk.tokens.size(), ")",
              chunk.finished ? " end" : "");
  if (chunk.choice < 0 || chunk.choice >= wish_.num_choices) return world_.Violate(name(), ": no such choice");
  ReadChoice(chunk, &choices_[chunk.choice]);
}

void Client::ReadChoice(const server::OutputChunk& chunk, Choice* choice) {
  const std::string where = absl::StrCat(name(), " choice ", chunk.choice);
  world_.Require(!choice->finished, where, " goes on after its end");
  if (!chunk.tokens.empty()) {
    world_.Require(chunk.index == static_cast<int32_t>(choice->tokens.size()), where, ": token ", chunk.index,
                   " comes as number ", choice->tokens.size());
  }
  for (const int32_t token : chunk.tokens) {
    const size_t index = choice->tokens.size();
    world_.Require(index < choice->expected.size() && choice->expected[index] == token, where, ": token ", index,
                   " is ", token, ", undisturbed ",
                   index < choice->expected.size() ? absl::StrCat(choice->expected[index]) : "none");
    choice->tokens.push_back(token);
  }
  world_.Require(chunk.logprobs.size() == (wish_.logprobs ? chunk.tokens.size() : 0), where, ": ",
                 chunk.logprobs.size(), " logprobs for ", chunk.tokens.size(), " tokens");
  if (!chunk.finished) return;
  choice->finished = true;
  CheckWhole(*choice, chunk);
}

void Client::CheckWhole(const Choice& choice, const server::OutputChunk& chunk) {
  if (chunk.reason == batching::FinishReason::kAbort) {
    world_.Require(cancelled_ || aborted_, name(), " is aborted, but nobody asked");
    return;
  }
  world_.Require(choice.tokens.size() == choice.expected.size(), name(), " choice ", chunk.choice, " has ended after ",
                 choice.tokens.size(), " of ", choice.expected.size(), " tokens");
  const auto num_tokens = static_cast<int32_t>(choice.tokens.size());
  const bool full =
      num_tokens == wish_.max_tokens || static_cast<int32_t>(wish_.prompt.size()) + num_tokens == max_context_;
  // What is constrained may have nothing to go on with, by chance when it is full.
  const bool stopped = (!choice.tokens.empty() && choice.tokens.back() == kStopId) ||
                       (wish_.constrained && (!full || chunk.reason == batching::FinishReason::kStop));
  world_.Require(chunk.reason == (stopped ? batching::FinishReason::kStop : batching::FinishReason::kLength), name(),
                 ": another finish reason than ", stopped ? "stop" : "length");
  world_.Require(chunk.usage.completion_tokens == static_cast<int32_t>(choice.tokens.size()), name(), ": usage says ",
                 chunk.usage.completion_tokens, " tokens");
}

void Client::EndCall(const absl::Status& status) {
  open_ = false;
  if (stream_ != nullptr) stream_->Detach();
  world_.Note(name(), ": call ", calls_, " ends: ", static_cast<int>(status.code()), " ", status.message());
  if (status.ok()) {
    for (const Choice& choice : choices_) world_.Require(choice.finished, name(), " has ended without all choices");
  }
  if (const std::string wrong = WhyWrong(status); !wrong.empty()) {
    world_.Violate(name(), " ends with ", status.ToString(), ": ", wrong);
  }
  const bool again =
      absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status);
  if (again && !cancelled_ && !aborted_ && (calls_ < wish_.calls || expects_service_)) return CallAgain();
  over_ = true;
  end_ = status;
}

// As the server may see it: of each pause of its own up to kUsual is, to it, time that passes as always.
absl::Duration Client::LongestUnread() const {
  return wish_.read_pause + wish_.stall + kOnTheWay +
         (server_.num_stops() - stops_before_) * server::ServerStall::kUsual;
}

std::string Client::WhyWrong(const absl::Status& status) const {
  const v1::ErrorReason reason = rpc::ReasonOf(status);
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
      return "";
    case absl::StatusCode::kCancelled:
      return cancelled_ ? "" : "nobody has cancelled it";
    case absl::StatusCode::kDeadlineExceeded:
      return world_.now() >= called_ + wish_.deadline ? "" : "its deadline has not come";
    case absl::StatusCode::kResourceExhausted:
      if (reason == v1::QUEUE_FULL) return "";
      return reason == v1::SLOW_READER && LongestUnread() > kSlowReader ? "" : "it reads in time";
    case absl::StatusCode::kFailedPrecondition:
      return reason == v1::MODEL_LOADING ? "" : "there is no cause";
    case absl::StatusCode::kAlreadyExists:
      return calls_ > 1 ? "" : "no other request has its id";
    case absl::StatusCode::kInternal:
      if (reason != v1::KILLS_WORKERS) return "there is no cause";
      return wish_.prompt[0] == kPoison || may_be_blamed_() ? "" : "it has killed no worker";
    default:
      return "there is no cause";
  }
}

void Client::CallAgain() {
  const absl::Duration pause = world_.random().Between(absl::Milliseconds(50), absl::Seconds(1));
  world_.After(pause, [this] { Call(); });
}

void Client::OnServerDeath() {
  if (!open_) return;
  if (stream_ != nullptr) stream_->Detach();
  Later(Latency(), [this] { EndCall(absl::UnavailableError("connection reset by peer")); });
}

}  // namespace switchyard::simulation
