#include "tests/fault/floods/attacks.h"

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "switchyard/v1/inference.pb.h"
#include "switchyard/v1/worker.pb.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/raw_connection.h"
#include "tests/fault/floods/attacker.h"

namespace switchyard {
namespace {

constexpr char kGenerate[] = "/switchyard.v1.InferenceService/Generate";
constexpr char kTokenize[] = "/switchyard.v1.InferenceService/Tokenize";
constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kLink[] = "/switchyard.v1.WorkerService/Link";
constexpr size_t kMessageBytes = (size_t{4} << 20) - 1000;  // just below the server's limit
constexpr uint32_t kWideWindow = 0x7fffffff;

std::string Repeat(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

// Sends `next` of the following stream as fast as the server takes it; `greeting` comes first.
struct Pouring {
  std::string greeting = http2::Preface();
  std::function<std::string(uint32_t stream)> next;
  bool reads = true;
  bool answers = true;  // to SETTINGS and PING, if it reads
  int steps = 1;        // streams that `next` uses
};
void Pour(AttackScope* scope, const Pouring& what) {
  RawConnection::Options options = AttackFrom(0);
  if (!what.reads) options.receive_buffer = 4096;
  options.answers = what.answers;
  Attacker attacker(scope, options, what.greeting);
  for (uint32_t stream = 1; !scope->over;) {
    RawConnection* const connection = attacker.Get();
    if (connection == nullptr) {
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    if (attacker.IsNew()) stream = 1;
    const std::string bytes = what.next(stream);
    stream += 2 * static_cast<uint32_t>(what.steps);
    for (size_t sent = 0; sent < bytes.size() && !connection->is_ended() && !scope->over;) {
      const int64_t before = connection->bytes_sent();
      connection->Send(bytes.substr(sent), kAttackTurn);
      sent += static_cast<size_t>(connection->bytes_sent() - before);
      if (what.reads) connection->Pump(absl::ZeroDuration());
    }
    scope->calls += what.steps;
    attacker.Count();
  }
}

void PourResets(AttackScope* scope, const char* path) {
  const std::string block = http2::HeaderBlock(http2::CallFields(path));
  Pour(scope, {.next =
                   [&block](uint32_t stream) {
                     std::string frames;
                     for (uint32_t i = 0; i < 20; ++i)
                       frames += http2::HeaderFrames(stream + 2 * i, block) + http2::ResetFrame(stream + 2 * i);
                     return frames;
                   },
               .steps = 20});
}

// The same frames again and again, on stream 0 or one that `greeting` has opened.
void PourFrames(AttackScope* scope, const std::string& frame, bool reads, const std::string& greeting = "") {
  const std::string frames = Repeat(frame, 200);
  Pour(scope, {.greeting = http2::Preface() + greeting,
               .next = [&frames](uint32_t) { return frames; },
               .reads = reads,
               .steps = 200});
}

void PourContinuations(AttackScope* scope, const std::string& payload) {
  const std::string start = http2::Frame(http2::kHeaders, 0, 1, http2::HeaderBlock(http2::CallFields(kGenerate)));
  PourFrames(scope, http2::Frame(http2::kContinuation, 0, 1, payload), true, start);
}

// Keeps `streams` calls with that message open on each connection, and makes the next when one has ended.
void KeepCalling(AttackScope* scope, ManyConnections crowd, const char* path, const std::string& bytes, int streams) {
  const auto message = std::make_shared<const std::string>(http2::GrpcMessage(bytes));
  std::map<RawConnection*, uint32_t> next;
  crowd.tend = [&](RawConnection* connection, bool is_new) {
    uint32_t& stream = next[connection];
    if (is_new) stream = 1;
    connection->Pump(absl::ZeroDuration());
    for (; connection->num_open() < static_cast<size_t>(streams) && !scope->over; stream += 2) {
      connection->OpenStream(stream, http2::CallHeaders(stream, path), message);
      ++scope->calls;
    }
    connection->SendMessages();
  };
  KeepMany(scope, crowd);
}

std::string WideGreeting() {
  return http2::Preface(http2::Setting(4, kWideWindow)) +
         http2::Frame(http2::kWindowUpdate, 0, 0, http2::BigEndian(kWideWindow - 65535, 4));
}

void FalseWorkers(AttackScope* scope, int) {
  v1::LinkRequest large;
  for (size_t i = 0; i < kMessageBytes / 2; ++i) large.mutable_step_result()->add_items();
  KeepCalling(scope, {.connections = 64, .greeting = WideGreeting(), .pause = absl::Milliseconds(2)}, kLink,
              large.SerializeAsString().substr(0, kMessageBytes), 1);
}

void LargeTexts(AttackScope* scope, int) {
  v1::TokenizeRequest large;
  while (large.text().size() < kMessageBytes - 1000) large.mutable_text()->append("In the beginning was the word. ");
  KeepCalling(scope, {.connections = 4, .greeting = WideGreeting(), .pause = absl::Milliseconds(2)}, kTokenize,
              large.SerializeAsString(), 75);
}

void WindowZeroReaders(AttackScope* scope, int) {
  v1::GenerateRequest request;
  request.set_text("In the beginning");
  request.set_max_tokens(16);
  request.set_ignore_eos(true);
  KeepCalling(scope,
              {.connections = 4, .greeting = http2::Preface(http2::Setting(4, 0)), .pause = absl::Milliseconds(5)},
              kGenerate, request.SerializeAsString(), 50);
}

void Watches(AttackScope* scope, int) {
  KeepCalling(scope, {.connections = 40, .greeting = WideGreeting(), .pause = absl::Milliseconds(20)}, kHealthWatch, "",
              500);
}

void IdleConnections(AttackScope* scope, int) {
  KeepMany(scope, {.connections = 600,
                   .clients = 3,
                   .greeting = http2::Preface(),
                   .tend = [](RawConnection* connection, bool) { connection->Pump(absl::ZeroDuration()); },
                   .pause = absl::Milliseconds(20)});
}

// A byte of the preface, or of a call's headers, at a time.
void SlowPrefaces(AttackScope* scope, int) {
  std::map<RawConnection*, size_t> sent;
  const std::string text = http2::Preface() + http2::CallHeaders(1, kGenerate);
  KeepMany(scope, {.connections = 200,
                   .answers = false,
                   .tend =
                       [&](RawConnection* connection, bool is_new) {
                         size_t& at = sent[connection];
                         if (is_new) at = 0;
                         connection->Pump(absl::ZeroDuration());
                         if (at < text.size() && connection->Send(text.substr(at, 1), absl::ZeroDuration())) ++at;
                       },
                   .pause = absl::Milliseconds(100)});
}

// Calls that are opened, and whose requests never come.
void OpenedCalls(AttackScope* scope, int) {
  Pour(scope, {.next = [](uint32_t stream) { return http2::CallHeaders(stream, kGenerate); }});
}
// The same by a client that never acknowledges SETTINGS, so that gRPC does not hold it to them.
void OpenedCallsUnacknowledged(AttackScope* scope, int) {
  Pour(scope, {.next = [](uint32_t stream) { return http2::CallHeaders(stream, kGenerate); }, .answers = false});
}
// As many fields as a frame can name by a byte each, in calls that never end.
void IndexedHeaders(AttackScope* scope, int) {
  const std::string block =
      http2::HeaderBlock(http2::CallFields(kGenerate)) + "\x40\x01x\x01y" + std::string(15000, '\xbe');
  Pour(scope, {.next = [&block](uint32_t stream) { return http2::HeaderFrames(stream, block); }, .answers = false});
}
// A block of headers that is begun on each of many connections.
void CutHeaders(AttackScope* scope, int) {
  const std::string start = http2::Frame(http2::kHeaders, 0, 1, http2::HeaderBlock(http2::CallFields(kGenerate)));
  KeepMany(scope, {.connections = 200,
                   .greeting = http2::Preface() + start,
                   .answers = false,
                   .tend = [](RawConnection* connection, bool) { connection->Pump(absl::ZeroDuration()); },
                   .pause = absl::Milliseconds(20)});
}
void LargeHeaders(AttackScope* scope, int) {
  http2::Fields fields = http2::CallFields(kGenerate);
  fields.emplace_back("x-large", std::string(1 << 20, 'x'));
  const std::string block = http2::HeaderBlock(fields);
  Pour(scope, {.next = [&block](uint32_t stream) { return http2::HeaderFrames(stream, block); }});
}

using http2::BigEndian;
using http2::Frame;

const std::vector<FloodKind> kFloods = {
    {"ResetsOfGenerate", 2, [](AttackScope* s, int) { PourResets(s, kGenerate); }},
    {"ResetsOfTokenize", 2, [](AttackScope* s, int) { PourResets(s, kTokenize); }},
    {"ResetsOfHealth", 2, [](AttackScope* s, int) { PourResets(s, kHealthCheck); }},
    {"ResetsOfReflection", 2, [](AttackScope* s, int) { PourResets(s, kReflection); }},
    {"Continuations", 2, [](AttackScope* s, int) { PourContinuations(s, http2::HeaderField("x", Repeat("x", 4000))); }},
    {"EmptyContinuations", 2, [](AttackScope* s, int) { PourContinuations(s, ""); }},
    {"Pings", 2, [](AttackScope* s, int) { PourFrames(s, Frame(http2::kPing, 0, 0, "12345678"), true); }},
    {"PingsUnread", 2, [](AttackScope* s, int) { PourFrames(s, Frame(http2::kPing, 0, 0, "12345678"), false); }},
    {"Settings", 2,
     [](AttackScope* s, int) { PourFrames(s, Frame(http2::kSettings, 0, 0, http2::Setting(4, 65535)), true); }},
    {"SettingsUnread", 2,
     [](AttackScope* s, int) { PourFrames(s, Frame(http2::kSettings, 0, 0, http2::Setting(4, 65535)), false); }},
    {"OpenedCalls", 2, OpenedCalls},
    {"OpenedCallsUnacked", 2, OpenedCallsUnacknowledged},
    {"IndexedHeaders", 2, IndexedHeaders},
    {"CutHeaders", 1, CutHeaders},
    {"LargeHeaders", 2, LargeHeaders},
    {"EmptyData", 2,
     [](AttackScope* s, int) { PourFrames(s, Frame(http2::kData, 0, 1, ""), true, http2::CallHeaders(1, kGenerate)); }},
    {"WindowUpdates", 2,
     [](AttackScope* s, int) { PourFrames(s, Frame(http2::kWindowUpdate, 0, 0, BigEndian(1, 4)), true); }},
    {"Priorities", 2,
     [](AttackScope* s, int) { PourFrames(s, Frame(http2::kPriority, 0, 1, BigEndian(0, 4) + "x"), true); }},
    {"WindowZero", 1, WindowZeroReaders, false, true},
    {"Idle", 1, IdleConnections},
    {"SlowPrefaces", 1, SlowPrefaces},
    {"Watches", 1, Watches},
    {"FalseWorkers", 1, FalseWorkers, true},
    {"LargeTexts", 1, LargeTexts, false, true},
};

}  // namespace

const std::vector<FloodKind>& Floods() { return kFloods; }

}  // namespace switchyard
