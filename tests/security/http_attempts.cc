// The server's metrics page, over HTTP/1: what it does not show, and what does not keep scrapers out.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/raw_connection.h"
#include "tests/half_requests.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

constexpr char kRefused[] = "^ended|^HTTP/[12].[01] (4[0-9][0-9]|501|505) ";

std::function<std::string(AttackedServers&)> Say(std::string bytes, absl::Duration limit = absl::Seconds(20)) {
  return [=](AttackedServers& servers) { return AfterHttp(servers.open()->metrics_address(), bytes, limit); };
}
std::function<std::string(AttackedServers&)> Get(const std::string& path) {
  return Say(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: here\r\n\r\n"));
}
std::function<std::string(AttackedServers&)> With(const std::string& method, const std::string& headers,
                                                  const std::string& body = "") {
  return Say(absl::StrCat(method, " /metrics HTTP/1.1\r\nHost: here\r\n", headers, "\r\n", body));
}

int PortOf(const std::string& address) {
  int port = 0;
  return absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port) ? port : 0;
}

// What a scraper sees beside 60 requests that do not end, and then what they see.
std::string SlowRequests(AttackedServers& servers) {
  const HalfRequests slow(PortOf(servers.open()->metrics_address()), 60);
  if (!absl::StrContains(PageOf(PortOf(servers.open()->metrics_address()), 10), "switchyard_ready"))
    return "a scraper is kept out";
  return Say("GET /metrics HTTP/1.1\r\nHost:")(servers);
}
// One client that asks a hundred times at once and never reads.
std::string Pipelined(AttackedServers& servers) {
  RawConnection greedy(servers.open()->metrics_address(), {.receive_buffer = 4096});
  std::string all;
  for (int i = 0; i < 100; ++i) all += "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
  greedy.Send(all, absl::Seconds(5));
  if (!absl::StrContains(PageOf(PortOf(servers.open()->metrics_address()), 10), "switchyard_ready"))
    return "a scraper is kept out";
  return "the scraper beside it is served";
}
std::string SecretsOnThePage(AttackedServers& servers) {
  const std::string page = Scrape(servers.open()->metrics_address());
  if (!absl::StrContains(page, "switchyard_ready")) return "no page";
  for (const char* secret : {AttackedServers::kJoinToken, "The", "/tmp", "key-"}) {
    if (absl::StrContains(page, absl::StrCat("\"", secret))) return absl::StrCat("the page has ", secret);
  }
  return "no secret on the page";
}

}  // namespace

std::vector<Attempt> HttpAttempts() {
  return {
      {"PathOutside", kRefused, Get("/../../../../etc/passwd")},
      {"PathOutsideEncoded", kRefused, Get("/%2e%2e/%2e%2e/etc/passwd")},
      {"PathOutsideOfMetrics", kRefused, Get("/metrics/../../etc/passwd")},
      {"PathWithBackslashes", kRefused, Get("/..\\..\\etc\\passwd")},
      {"PathWithNul", kRefused, Get("/x%00/metrics")},
      {"PathOfAFile", kRefused, Get("/etc/passwd")},
      {"PathOfTheRoot", kRefused, Get("/")},
      {"PathOfAnotherHost", kRefused, Get("http://169.254.169.254/latest/meta-data")},
      {"ALineOf1Megabyte", kRefused, Get("/" + std::string(1 << 20, 'x'))},
      {"AHeaderOf1Megabyte", kRefused, With("GET", "X-Large: " + std::string(1 << 20, 'x') + "\r\n")},
      {"Post", kRefused, With("POST", "Content-Length: 1\r\n", "x")},
      {"PostOf4Gigabytes", kRefused, With("POST", "Content-Length: 4294967296\r\n")},
      {"Put", kRefused, With("PUT", "Content-Length: 1\r\n", "x")},
      {"Delete", kRefused, With("DELETE", "")},
      {"Trace", kRefused, With("TRACE", "")},
      {"Connect", kRefused, Say("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: here\r\n\r\n")},
      {"UnknownMethod", kRefused, With("XYZZY", "")},
      {"LengthAndTransferEncoding", kRefused,
       With("POST", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nGET /x HTTP/1.1\r\n\r\n")},
      {"LengthNegative", kRefused, With("POST", "Content-Length: -1\r\n")},
      {"Junk", kRefused, Say(std::string(100000, '\xff'))},
      {"Http2", kRefused, Say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
      {"Http09", kRefused, Say("GET /\r\n\r\n")},
      {"Silence", "^ended|HTTP/1.1 408", Say("", absl::Seconds(40))},
      {"SixtyHalfRequests", "^ended|^HTTP/1.[01] 40[08]", SlowRequests},
      {"AHundredAtOnceAndUnread", "^the scraper beside it is served", Pipelined},
      {"SecretsOnThePage", "^no secret", SecretsOnThePage},
  };
}

}  // namespace switchyard
