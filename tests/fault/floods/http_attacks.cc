// Floods of HTTP/1.1: slow and large requests, many in one connection, and clients that do not read or are gone.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/e2e/raw_connection.h"
#include "tests/fault/floods/attacker.h"
#include "tests/fault/floods/attacks.h"

namespace switchyard {
namespace {

constexpr size_t kBodyBytes = (size_t{4} << 20) - 1000;  // just below the server's limit

std::string Request(const std::string& method, const std::string& path, const std::string& fields = "",
                    const std::string& body = "") {
  return absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n", fields, "\r\n", body);
}
std::string Posted(const std::string& path, const std::string& body) {
  return Request("POST", path, absl::StrCat("Content-Length: ", body.size(), "\r\n"), body);
}
std::string StreamRequest(int max_tokens) {
  return Posted("/v1/completions", absl::StrCat(R"({"prompt":"In the beginning","ignore_eos":true,"stream":true,)",
                                                R"("max_tokens":)", max_tokens, "}"));
}

// Sends the same bytes again and again, as fast as the server takes them; `greeting` comes first.
struct PouredBytes {
  std::string greeting = {};
  std::string bytes;
  int64_t requests = 1;  // in `bytes`
  bool reads = true;
  int64_t times = 0;  // after which it begins anew, with another connection; 0: never
};
void PourBytes(AttackScope* scope, int client, const PouredBytes& what) {
  RawConnection::Options options = AttackFrom(client);
  if (!what.reads) options.receive_buffer = 4096;
  Attacker attacker(scope, options, what.greeting);
  int64_t times = 0;
  while (!scope->over) {
    RawConnection* const connection = attacker.Get();
    if (connection == nullptr) {
      absl::SleepFor(absl::Milliseconds(1));
      continue;
    }
    if (attacker.IsNew()) times = 0;
    for (size_t sent = 0; sent < what.bytes.size() && !connection->is_ended() && !scope->over;) {
      const int64_t before = connection->bytes_sent();
      // No more than the server takes soon, as it may wait to be read.
      connection->Send(what.bytes.substr(sent, 64 << 10), absl::Milliseconds(2));
      sent += static_cast<size_t>(connection->bytes_sent() - before);
      if (what.reads) connection->Discard();
    }
    scope->calls += what.requests;
    attacker.Count();
    if (++times == what.times) attacker.Vanish();
  }
}

// As many requests in one connection as the server takes, thousands a second.
void Pipelining(AttackScope* scope, int thread, bool reads) {
  std::string hundred;
  for (int i = 0; i < 100; ++i) hundred += Request("GET", "/version");
  PourBytes(scope, thread, {.bytes = hundred, .requests = 100, .reads = reads});
}

void LargeHeads(AttackScope* scope, int thread) {
  const std::string head = Request("GET", "/version", absl::StrCat("X-Large: ", std::string(1 << 20, 'x'), "\r\n"));
  PourBytes(scope, thread, {.bytes = head});
}

// Bodies in chunks of one byte, and a chunk whose head does not end.
void TinyChunks(AttackScope* scope, int thread) {
  std::string chunks;
  for (int i = 0; i < 10000; ++i) chunks += "1\r\nx\r\n";
  PourBytes(scope, thread,
            {.greeting = Request("POST", "/v1/completions", "Transfer-Encoding: chunked\r\n"), .bytes = chunks});
}
void EndlessChunkHead(AttackScope* scope, int thread) {
  PourBytes(scope, thread,
            {.greeting = Request("POST", "/v1/completions", "Transfer-Encoding: chunked\r\n") + "1;x=",
             .bytes = std::string(1 << 20, 'x')});
}

// A connection for each request.
void Connects(AttackScope* scope, int thread) {
  PourBytes(scope, thread, {.bytes = Request("GET", "/version"), .times = 1});
}

// A byte of a head at a time.
void Slowloris(AttackScope* scope, int) {
  std::map<RawConnection*, size_t> sent;
  const std::string text = Request("GET", "/version", "X-Slow: and slower than the one before it\r\n");
  KeepMany(scope, {.connections = 400,
                   .clients = 2,
                   .tend =
                       [&](RawConnection* connection, bool is_new) {
                         size_t& at = sent[connection];
                         if (is_new) at = 0;
                         connection->Discard();
                         if (at < text.size() && connection->Send(text.substr(at, 1), absl::ZeroDuration())) ++at;
                       },
                   .pause = absl::Milliseconds(250)});
}

// All of a large body but its end.
void SlowBodies(AttackScope* scope, int) {
  std::map<RawConnection*, size_t> sent;
  const std::string head = Request("POST", "/v1/completions", absl::StrCat("Content-Length: ", kBodyBytes + 1, "\r\n"));
  const std::string body(kBodyBytes, ' ');
  KeepMany(scope, {.connections = 12,
                   .greeting = head,
                   .tend =
                       [&](RawConnection* connection, bool is_new) {
                         size_t& at = sent[connection];
                         if (is_new) at = 0;
                         connection->Discard();
                         const int64_t before = connection->bytes_sent();
                         connection->Send(body.substr(at, 256 << 10), absl::ZeroDuration());
                         at += static_cast<size_t>(connection->bytes_sent() - before);
                       },
                   .pause = absl::Milliseconds(5)});
}

// Clients that ask for a stream and are gone, at once or when it has begun.
void VanishedClients(AttackScope* scope, int thread) {
  const std::string request = StreamRequest(500);
  std::vector<std::unique_ptr<Attacker>> all;
  for (int i = 0; i < 4; ++i) all.push_back(std::make_unique<Attacker>(scope, AttackFrom(2 * i + thread), request));
  for (int64_t turn = 0; !scope->over; ++turn) {
    for (const auto& attacker : all) {
      RawConnection* const connection = attacker->Get();
      if (connection == nullptr) continue;
      ++scope->calls;
      if (turn % 2 == 0) connection->Pump(absl::Milliseconds(20));
      attacker->Vanish();
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

// 256 streams: every second reads a byte every 50 ms, the others read nothing.
void SlowReaders(AttackScope* scope, int) {
  std::map<RawConnection*, bool> reads;
  KeepMany(scope, {.connections = 256,
                   .clients = 4,
                   .greeting = StreamRequest(30),
                   .receive_buffer = 4096,
                   .tend =
                       [&](RawConnection* connection, bool is_new) {
                         if (is_new) {
                           reads[connection] = scope->calls % 2 == 0;
                           ++scope->calls;
                         }
                         if (reads[connection]) connection->Discard(1);
                       },
                   .pause = absl::Milliseconds(50)});
}

const std::vector<FloodKind> kHttpFloods = {
    {"Slowloris", 1, Slowloris, false, false, true},
    {"SlowBodies", 1, SlowBodies, false, false, true},
    {"Pipelining", 2, [](AttackScope* s, int thread) { Pipelining(s, thread, true); }, false, false, true},
    {"PipeliningUnread", 2, [](AttackScope* s, int thread) { Pipelining(s, thread, false); }, false, false, true},
    {"Connects", 2, Connects, false, false, true},
    {"LargeHeads", 2, LargeHeads, false, false, true},
    {"TinyChunks", 2, TinyChunks, false, false, true},
    {"EndlessChunkHead", 2, EndlessChunkHead, false, false, true},
    {"VanishedClients", 2, VanishedClients, false, true, true},
    {"SlowReaders", 1, SlowReaders, false, true, true},
};

}  // namespace

const std::vector<FloodKind>& HttpFloods() { return kHttpFloods; }

}  // namespace switchyard
