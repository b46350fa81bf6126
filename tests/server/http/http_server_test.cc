// The HTTP server over sockets of this process: who is too slow, too large or too often there, and who is gone.
#include "server/http/http_server.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/clock.h"
#include "server/admission/peer_name.h"
#include "server/front/relay.h"
#include "tests/becomes.h"

namespace switchyard::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A client's end of a connection.
class Client {
 public:
  Client(HttpServer* server, int number, const std::string& address = "127.0.0.1") {
    fd_ = OpenNamedPair(RelayedName(address, 1000 + number, absl::StrCat("http-test-", getpid(), "-", number)),
                        [server](int fd) { server->Adopt(fd); });
    EXPECT_GE(fd_, 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Sends all, within a time.
  bool Send(absl::string_view bytes) const {
    for (const absl::Time end = absl::Now() + kPatience; !bytes.empty() && absl::Now() < end;) {
      pollfd waits = {.fd = fd_, .events = POLLOUT, .revents = 0};
      poll(&waits, 1, 1000);
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return false;
      bytes.remove_prefix(sent > 0 ? static_cast<size_t>(sent) : 0);
    }
    return bytes.empty();
  }
  // Waits until the server has read what was sent.
  bool AwaitRead() const {
    return Becomes([this] {
      int unread = 0;
      return ioctl(fd_, SIOCOUTQ, &unread) == 0 && unread == 0;
    });
  }
  // Reads at most `most` bytes once some are there; empty: the server has closed its end.
  std::string Read(size_t most = 64 << 10) const {
    std::string bytes(most, '\0');
    pollfd waits = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) <= 0) return "";
    const ssize_t got = recv(fd_, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  // Reads until the server closes its end, or `text` has come.
  std::string ReadUntil(absl::string_view text = "") const {
    std::string all;
    for (std::string bytes = Read(); !bytes.empty(); bytes = Read()) {
      all += bytes;
      if (!text.empty() && absl::StrContains(all, text)) break;
    }
    return all;
  }

 private:
  int fd_ = -1;
};

constexpr char kGet[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

std::string Post(size_t length, const std::string& body = "") {
  return absl::StrCat("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ", length, "\r\n\r\n", body);
}

class HttpServerTest : public testing::Test {
 protected:
  // Answers each request with its body's size, or as `handler` does.
  void Start(HttpServer::Options options) {
    if (options.handler == nullptr) {
      options.handler = [this](const std::shared_ptr<HttpExchange>& exchange) {
        {
          absl::MutexLock lock(&mu_);
          ++handled_;
        }
        exchange->Reply({.body = absl::StrCat("size ", exchange->request().body.size(), ".")});
      };
    }
    options.refuse = [](int status, const std::string& why) { return HttpReply{.status = status, .body = why}; };
    options.finish_head = [this](const HttpRequest& request, HttpReply* reply) {
      absl::MutexLock lock(&mu_);
      if (request.method.empty()) refused_.push_back(reply->status);
    };
    options.on_cut = [this](HttpCut why) {
      absl::MutexLock lock(&mu_);
      cuts_.push_back(why);
    };
    server_ = std::make_unique<HttpServer>(std::move(options));
  }
  void TearDown() override { server_.reset(); }
  // An answer of `bytes` to each request.
  void StartWithAnswersOf(size_t bytes, HttpServer::Options options) {
    options.handler = [bytes](const std::shared_ptr<HttpExchange>& exchange) {
      exchange->Reply({.body = std::string(bytes, 'x') + "END"});
    };
    Start(std::move(options));
  }
  bool AwaitCuts(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cuts_.size() >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&there), kPatience);
  }
  std::vector<HttpCut> cuts() {
    absl::MutexLock lock(&mu_);
    return cuts_;
  }
  std::vector<int> refused() {
    absl::MutexLock lock(&mu_);
    return refused_;
  }
  int handled() {
    absl::MutexLock lock(&mu_);
    return handled_;
  }

  absl::Mutex mu_;
  std::vector<HttpCut> cuts_ ABSL_GUARDED_BY(mu_);
  std::vector<int> refused_ ABSL_GUARDED_BY(mu_);  // statuses of what was no request
  int handled_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<HttpServer> server_;
};

// The whole answer takes longer than a client may take nothing.
TEST_F(HttpServerTest, ASteadySlowReaderGetsAllOfALargeAnswer) {
  constexpr absl::Duration kLimit = absl::Seconds(2);
  StartWithAnswersOf(8 << 20, {.write_timeout = kLimit});
  const Client client(server_.get(), 1);
  ASSERT_TRUE(client.Send(kGet));
  std::string answer;
  const absl::Time begin = absl::Now();
  while (!absl::StrContains(absl::string_view(answer).substr(answer.size() > 10 ? answer.size() - 10 : 0), "END")) {
    const std::string bytes = client.Read(128 << 10);
    ASSERT_FALSE(bytes.empty()) << "cut after " << answer.size() << " bytes and " << absl::Now() - begin;
    answer += bytes;
    absl::SleepFor(absl::Milliseconds(40));  // its pace
  }
  EXPECT_GT(absl::Now() - begin, kLimit) << "it was not slow";
  EXPECT_THAT(cuts(), ElementsAre());
}

TEST_F(HttpServerTest, WhoTakesNothingIsCutAndCounted) {
  StartWithAnswersOf(3 << 20, {.write_timeout = absl::Milliseconds(200)});
  const Client client(server_.get(), 1);
  ASSERT_TRUE(client.Send(kGet));
  ASSERT_TRUE(AwaitCuts(1));
  EXPECT_THAT(cuts(), ElementsAre(HttpCut::kSlowReader));
  EXPECT_LT(client.ReadUntil().size(), size_t{3} << 20);
}

// Also when the client had begun its next request, so that its end is not what comes next.
TEST_F(HttpServerTest, AVanishedClientIsNoticedAndCounted) {
  for (const std::string next : {"", "GET /next HTTP/1.1\r\n"}) {
    absl::Mutex mu;
    int gone = 0;
    Start({.quiet_time = absl::Milliseconds(100), .handler = [&](const std::shared_ptr<HttpExchange>& exchange) {
             exchange->SetEvents({.on_written = {},
                                  .on_gone =
                                      [&mu, &gone](bool is_slow) {
                                        EXPECT_FALSE(is_slow);
                                        absl::MutexLock lock(&mu);
                                        ++gone;
                                      },
                                  .on_quiet = {}});
             exchange->Begin({.body = "begun"});
           }});
    Client client(server_.get(), 1);
    ASSERT_TRUE(client.Send(kGet + next));
    EXPECT_THAT(client.ReadUntil("begun"), HasSubstr("200 OK"));
    client.Close();
    ASSERT_TRUE(AwaitCuts(next.empty() ? 1 : 2)) << next;
    EXPECT_EQ(cuts().back(), HttpCut::kClientGone);
    server_.reset();
    absl::MutexLock lock(&mu);
    EXPECT_EQ(gone, 1);
  }
}

// Twelve announce 4 MB and send little of it: that holds little.
TEST_F(HttpServerTest, BodiesHoldWhatHasCome) {
  Start({.bodies_bytes = 8 << 20});
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 12; ++i) {
    slow.push_back(std::make_unique<Client>(server_.get(), i));
    ASSERT_TRUE(slow.back()->Send(Post(4 << 20, "{")));
  }
  const Client quick(server_.get(), 100);
  ASSERT_TRUE(quick.Send(Post(3 << 20, std::string(3 << 20, 'b'))));
  EXPECT_THAT(quick.ReadUntil("size "), HasSubstr(absl::StrCat("size ", 3 << 20)));
}

// Those who hold more than an equal share are refused; others are served beside them.
TEST_F(HttpServerTest, BodiesBeyondAClientsShareAreRefused) {
  Start({.bodies_bytes = 8 << 20});
  std::vector<std::unique_ptr<Client>> greedy;
  for (int i = 0; i < 12; ++i) {
    greedy.push_back(std::make_unique<Client>(server_.get(), i, absl::StrCat("10.0.0.", i)));
    greedy.back()->Send(Post(4 << 20, std::string((4 << 20) - 1, 'b')));  // a refused one need not take all
  }
  const Client other(server_.get(), 100, "10.0.1.1");
  ASSERT_TRUE(other.Send(Post(50000, std::string(50000, 'b'))));
  EXPECT_THAT(other.ReadUntil("size "), HasSubstr("size 50000."));
  EXPECT_THAT(greedy.back()->ReadUntil("share"), HasSubstr("HTTP/1.1 429 "));
  EXPECT_TRUE(Becomes([&] { return refused().size() > 8; })) << refused().size();
  EXPECT_LT(refused().size(), 13u);
  for (const int status : refused()) EXPECT_EQ(status, 429);
}

std::string Gets(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += kGet;
  return all;
}

// 20 of each connection are free, and 10 of the client.
TEST_F(HttpServerTest, RequestsBeyondARateWait) {
  Start({.requests_a_second = 10});
  const Client client(server_.get(), 1);
  client.Send(Gets(35) + "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_FALSE(absl::StrContains(client.ReadUntil(), " 429 "));
  EXPECT_EQ(handled(), 36);
}

TEST_F(HttpServerTest, RequestsThatWouldWaitTooLongAreRefused) {
  constexpr int kSent = 2000;
  Start({.requests_a_second = 10, .turn_timeout = absl::ZeroDuration()});
  const Client one(server_.get(), 1), other(server_.get(), 2), elsewhere(server_.get(), 3, "10.0.0.2");
  one.Send(Gets(kSent));
  EXPECT_TRUE(absl::StrContains(one.ReadUntil(" 429 "), " 429 "));
  EXPECT_GE(handled(), 30);
  EXPECT_LT(handled(), kSent / 2);
  EXPECT_THAT(refused(), ElementsAre(429));
  other.Send(kGet);
  EXPECT_THAT(other.ReadUntil("size"), HasSubstr("200 OK")) << "a few of each connection are free";
  elsewhere.Send(Gets(25) + "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_FALSE(absl::StrContains(elsewhere.ReadUntil(), " 429 ")) << "another client has a rate of its own";
}

// The account of another port, which names clients by their addresses.
TEST_F(HttpServerTest, RequestsCountWithWhatTheirClientAsksOfOtherPorts) {
  ClientRates rates(/*rate=*/10, /*burst=*/10);
  const absl::Time now = MonotonicNow();
  while (rates.Of("10.0.0.2", now)->Take(now)) continue;
  Start({.requests_a_second = 10, .rates = &rates, .turn_timeout = absl::ZeroDuration()});
  const Client known(server_.get(), 1, "10.0.0.2"), other(server_.get(), 2, "10.0.0.3");
  known.Send(Gets(200));
  EXPECT_TRUE(absl::StrContains(known.ReadUntil(" 429 "), " 429 "));
  const int of_known = handled();
  EXPECT_GE(of_known, 20) << "those that are free for each connection";
  other.Send(Gets(200));
  EXPECT_TRUE(absl::StrContains(other.ReadUntil(" 429 "), " 429 "));
  EXPECT_GE(handled(), of_known + 30) << "10 more, of its own account";
  EXPECT_FALSE(rates.Of("10.0.0.3", now)->Take(now)) << "used by requests";
}

// What stands behind a chunk's size may be of any length for the parser.
TEST_F(HttpServerTest, TheHeadOfAChunkIsBounded) {
  Start({});
  const Client client(server_.get(), 1);
  client.Send(absl::StrCat("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;x=",
                           std::string(200 << 10, 'x')));
  EXPECT_THAT(client.ReadUntil("bytes"), HasSubstr("the head of a chunk is longer than 131072 bytes"));
  EXPECT_THAT(refused(), ElementsAre(400));
}

// A head of so many bytes.
std::string HeadOf(size_t bytes) {
  constexpr size_t kLine = 40;
  std::string head = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
  for (size_t left = bytes - 2 - head.size(); left > 0; left = bytes - 2 - head.size()) {
    const size_t line = left < 2 * kLine ? left : kLine;
    absl::StrAppend(&head, "X: ", std::string(line - 5, 'x'), "\r\n");
  }
  return head + "\r\n";
}

// Cut behind the first byte of each line, where the parser has just taken the line before.
TEST_F(HttpServerTest, AHeadIsBoundedHoweverItIsCut) {
  constexpr size_t kLimit = 400;
  Start({.head_bytes = kLimit});
  int number = 0;
  for (const size_t bytes : {kLimit, kLimit + 1, 4 * kLimit}) {
    const std::string head = HeadOf(bytes), status = bytes <= kLimit ? "HTTP/1.1 200 " : "HTTP/1.1 431 ";
    ASSERT_EQ(head.size(), bytes);
    const Client whole(server_.get(), ++number), cut(server_.get(), ++number);
    whole.Send(head);
    EXPECT_THAT(whole.ReadUntil(), HasSubstr(status)) << bytes;
    for (size_t begin = 0; begin < head.size();) {
      const size_t end = std::min(head.find('\n', begin + 1), head.size() - 2) + 2;
      if (!cut.Send(head.substr(begin, end - begin))) break;  // refused
      ASSERT_TRUE(cut.AwaitRead());
      begin = end;
    }
    EXPECT_THAT(cut.ReadUntil(), HasSubstr(status)) << bytes;
  }
  EXPECT_THAT(refused(), ElementsAre(431, 431, 431, 431));
  EXPECT_EQ(handled(), 2);
}

// They come when the head has been judged.
TEST_F(HttpServerTest, FieldsBehindABodyAreNoHeaders) {
  Start({.handler = [](const std::shared_ptr<HttpExchange>& exchange) {
    std::string headers;
    for (const auto& [name, value] : exchange->request().headers) absl::StrAppend(&headers, name, "=", value, " ");
    exchange->Reply({.body = absl::StrCat(headers, exchange->request().body, ".")});
  }});
  const Client client(server_.get(), 1);
  client.Send(
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\n{}\r\n0\r\nHost: other\r\nAuthorization: Bearer sy-1\r\nConnection: close\r\n\r\n");
  const std::string answer = client.ReadUntil("}.");
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nHost=h Transfer-Encoding=chunked {}."));
  EXPECT_THAT(answer, HasSubstr("Connection: keep-alive"));
}

TEST_F(HttpServerTest, Http2IsNamedBeforeItsFirstLineIsWhole) {
  Start({});
  const Client client(server_.get(), 1);
  client.Send("PRI * HTTP/2.0");
  EXPECT_THAT(client.ReadUntil("port"), HasSubstr("HTTP/1.1 505 "));
}

TEST_F(HttpServerTest, RefusedHeadsAreCounted) {
  Start({.head_timeout = absl::Milliseconds(100)});
  const Client large(server_.get(), 1), slow(server_.get(), 2), other(server_.get(), 3);
  large.Send(absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(1 << 20, 'x'), "\r\n\r\n"));
  EXPECT_THAT(large.ReadUntil("bytes"), HasSubstr("HTTP/1.1 431 "));
  slow.Send("GET / HT");
  EXPECT_THAT(slow.ReadUntil("long"), HasSubstr("HTTP/1.1 408 "));
  other.Send("what is this\r\n\r\n");
  EXPECT_THAT(other.ReadUntil("request"), HasSubstr("HTTP/1.1 400 "));
  EXPECT_THAT(refused(), ElementsAre(431, 408, 400));
  EXPECT_EQ(handled(), 0);
}

}  // namespace
}  // namespace switchyard::server
