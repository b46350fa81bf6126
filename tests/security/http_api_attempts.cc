// The port of HTTP, OpenAI's API: keys, roles, others' jobs, other sites' pages, smuggled and hostile requests.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/raw_connection.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

using Run = std::function<std::string(AttackedServers&)>;

constexpr char kCompletions[] = "/v1/completions";
constexpr char kBody[] = R"({"prompt":"The","max_tokens":2})";

std::string InWordsOf(const HttpAnswer& answer) {
  if (answer.status == 0) return "ended";
  return absl::StrCat(answer.status, " ", answer.body.substr(0, 200));
}
// A request to the server with keys, and to the one without.
Run Keyed(const std::string& method, const std::string& path, const std::string& body = "",
          const std::vector<std::string>& headers = {}) {
  return [=](AttackedServers& servers) -> std::string {
    if (servers.keyed() == nullptr) return "no server";
    return InWordsOf(HttpCall(servers.keyed()->http_address(), method, path, body, headers));
  };
}
Run As(const std::string& name, const std::string& method, const std::string& path, const std::string& body = "") {
  return Keyed(method, path, body, {absl::StrCat("Authorization: Bearer key-", name)});
}
Run Open(const std::string& method, const std::string& path, const std::string& body = "",
         const std::vector<std::string>& headers = {}) {
  return [=](AttackedServers& servers) {
    return InWordsOf(HttpCall(servers.open()->http_address(), method, path, body, headers));
  };
}
// Bytes as they are, and all answers to them until the server closes: "400, 1 answers".
Run Raw(const std::string& bytes) {
  return [bytes](AttackedServers& servers) {
    HttpConnectionForTests connection(servers.open()->http_address());
    connection.Send(bytes);
    HttpAnswer first = connection.Read(absl::Seconds(40));
    int count = first.status == 0 ? 0 : 1;
    while (first.status != 0 && connection.Read(absl::Seconds(40)).status != 0) ++count;
    return first.status == 0 ? "ended" : absl::StrCat(first.status, ", ", count, " answers");
  };
}
Run OnAnothersJob(const std::string& rest) {
  return [rest](AttackedServers& servers) {
    return As("theo", "GET", absl::StrCat("/api/jobs/", servers.job_of_tina(), rest))(servers);
  };
}
std::string AnothersJobInTheList(AttackedServers& servers) {
  const std::string id = servers.job_of_tina();
  const std::string answer = As("theo", "GET", "/api/jobs")(servers);
  return !id.empty() && absl::StartsWith(answer, "200 ") && !absl::StrContains(answer, id) ? "not in the list" : answer;
}
std::string BeyondTheQuotaOfHttp(AttackedServers& servers) {
  std::string last;
  for (int i = 0; i < 2; ++i) last = As("poor", "POST", kCompletions, kBody)(servers);
  return last;
}
// A smuggled second request is not served: the connection ends with the first answer.
Run Smuggled(const std::string& fields, const std::string& rest = "0\r\n\r\n") {
  return Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", fields, "\r\n", rest,
                          "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"));
}
std::vector<Attempt> KeysOverHttp() {
  return {
      {"HttpWithoutAKey", "^401 ", Keyed("POST", kCompletions, kBody)},
      {"HttpChatWithoutAKey", "^401 ", Keyed("POST", "/v1/chat/completions", "{}")},
      {"HttpMessagesWithoutAKey", "^401 ", Keyed("POST", "/v1/messages", "{}")},
      {"HttpTokenizeWithoutAKey", "^401 ", Keyed("POST", "/tokenize", "{}")},
      {"HttpModelsWithoutAKey", "^401 ", Keyed("GET", "/v1/models")},
      {"HttpJobsWithoutAKey", "^401 ", Keyed("GET", "/api/jobs")},
      {"HttpMetricsWithoutAKey", "^401 ", Keyed("GET", "/metrics")},
      {"HttpUnknownKey", "^401 ", As("nobody", "POST", kCompletions, kBody)},
      {"HttpKeyOfAnotherCase", "^401 ", Keyed("POST", kCompletions, kBody, {"Authorization: Bearer KEY-alice"})},
      {"HttpKeyInTheQuery", "^401 ", Keyed("POST", "/v1/completions?key=key-alice&api_key=key-alice", kBody)},
      {"HttpKeyInTheBody", "^401 ",
       Keyed("POST", kCompletions, R"({"prompt":"The","max_tokens":2,"api_key":"key-alice"})")},
      {"HttpKeyByBasic", "^401 ", Keyed("POST", kCompletions, kBody, {"Authorization: Basic a2V5LWFsaWNlOg=="})},
      {"HttpTwoKeys", "^401 ",
       Keyed("POST", kCompletions, kBody, {"Authorization: Bearer key-alice", "Authorization: Bearer key-root"})},
      {"HttpUnknownXApiKey", "^401 ", Keyed("POST", "/v1/messages", "{}", {"x-api-key: key-nobody"})},
      {"HttpKeyInACookie", "^401 ", Keyed("POST", kCompletions, kBody, {"Cookie: Authorization=Bearer key-alice"})},
      {"HttpUserReadsMetrics", "^403 ", As("alice", "GET", "/metrics")},
      {"HttpUserListsJobs", "^403 ", As("alice", "GET", "/api/jobs")},
      {"HttpUserSeesExperts", "^403 ", As("alice", "GET", "/api/experts")},
      {"HttpTrainerReadsMetrics", "^403 ", As("tina", "GET", "/metrics")},
      {"HttpUserByAnotherCase", "^404 ", As("alice", "GET", "/METRICS")},
      {"HttpUserByTwoSlashes", "^404 ", As("alice", "GET", "//metrics")},
      {"HttpUserByADot", "^404 ", As("alice", "GET", "/./metrics")},
      {"HttpAnothersJob", "^40[34] ", OnAnothersJob("")},
      {"HttpAnothersLosses", "^40[34] ", OnAnothersJob("/losses")},
      {"HttpAnothersJobInTheList", "^not in the list", AnothersJobInTheList},
      {"HttpBeyondTheQuota", "^429 ", BeyondTheQuotaOfHttp},
  };
}

std::vector<Attempt> SitesAndPaths() {
  return {
      {"HttpHostOfAnotherSite", "^403 ", Open("GET", "/version", "", {"Host: evil.example"})},
      {"HttpHostThatEndsInLocalhost", "^403 ", Open("GET", "/version", "", {"Host: localhost.evil.example"})},
      {"HttpHostWithAUser", "^403 ", Open("GET", "/version", "", {"Host: localhost@evil.example"})},
      {"HttpPageOfAnotherSite", "^403 ", Open("POST", kCompletions, kBody, {"Origin: https://evil.example"})},
      {"HttpPageOfAFile", "^403 ", Open("POST", kCompletions, kBody, {"Origin: null"})},
      {"HttpPageOfAnotherPort", "^403 ", Open("POST", kCompletions, kBody, {"Origin: http://127.0.0.1:1"})},
      {"HttpPreflightOfAnotherSite", "^403 ",
       Open("OPTIONS", kCompletions, "", {"Origin: https://evil.example", "Access-Control-Request-Method: POST"})},
      {"HttpPathOutside", "^404 ", Open("GET", "/page/../../../../etc/passwd")},
      {"HttpPathOutsideEncoded", "^404 ", Open("GET", "/page/%2e%2e/%2e%2e/etc/passwd")},
      {"HttpPathOfAJobOutside", "^40[0-9] ", Open("GET", "/api/jobs/..%2f..%2fetc/losses")},
      {"HttpPathOfAnotherHost", "^404 ", Open("GET", "http://169.254.169.254/latest/meta-data")},
      {"HttpPut", "^405 ", Open("PUT", kCompletions, kBody)},
      {"HttpDelete", "^40[45] ", Open("DELETE", "/v1/models/demo-model")},
      {"HttpTrace", "^40[45] ", Open("TRACE", "/version")},
      {"HttpConnect", "^40[0-9] ", Open("CONNECT", "127.0.0.1:22")},
  };
}

std::vector<Attempt> HostileBytes() {
  const std::string host = "Host: localhost\r\n";
  return {
      {"HttpSmuggledByLengthAndChunks", "^400, 1 ", Smuggled("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")},
      {"HttpSmuggledByTwoLengths", "^400, 1 ", Smuggled("Content-Length: 5\r\nContent-Length: 6\r\n")},
      {"HttpSmuggledByAListOfLengths", "^400, 1 ", Smuggled("Content-Length: 5, 5\r\n")},
      {"HttpSmuggledBySigns", "^400, 1 ", Smuggled("Content-Length: +5\r\n")},
      {"HttpSmuggledByAnotherEncoding", "^501, 1 ", Smuggled("Transfer-Encoding: chunked, identity\r\n")},
      {"HttpSmuggledByASpace", "^400, 1 ", Smuggled("Transfer-Encoding : chunked\r\n")},
      {"HttpSmuggledByAFoldedLine", "^[45]0[01], 1 ",
       Smuggled("X: y\r\n Transfer-Encoding: chunked\r\nTransfer-Encoding: xchunked\r\n")},
      {"HttpSmuggledByABadChunk", "^400, 1 ", Smuggled("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n")},
      {"HttpSmuggledByAnEarlyVersion", "^400, 1 ",
       Raw(absl::StrCat(
           "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /version HTTP/1.1\r\n",
           host, "\r\n"))},
      // An id that a client chose goes back to it.
      {"HttpAHeaderInAnId", "^400, 1 ",
       Raw(absl::StrCat("GET /version HTTP/1.1\r\n", host, "X-Request-Id: a\rSet-Cookie: b=c\r\n\r\n"))},
      {"HttpTwoHosts", "^400, 1 ", Raw(absl::StrCat("GET /version HTTP/1.1\r\n", host, host, "\r\n"))},
      {"HttpNoHost", "^400, 1 ", Raw("GET /version HTTP/1.1\r\n\r\n")},
      {"HttpALineOf1Megabyte", "^431, 1 ",
       Raw(absl::StrCat("GET /", std::string(1 << 20, 'x'), " HTTP/1.1\r\n", host, "\r\n"))},
      {"HttpAHeaderOf1Megabyte", "^431, 1 ",
       Raw(absl::StrCat("GET / HTTP/1.1\r\n", host, "X: ", std::string(1 << 20, 'x'), "\r\n\r\n"))},
      {"HttpABodyOf4Gigabytes", "^413, 1 ",
       Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\n", host, "Content-Length: 4294967296\r\n\r\n"))},
      {"HttpAChunkOf4Gigabytes", "^4(00|13), 1 ",
       Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\n", host, "Transfer-Encoding: chunked\r\n\r\n100000000\r\n"))},
      {"HttpAnEndlessChunkHead", "^400, 1 ",
       Raw(absl::StrCat("POST /v1/completions HTTP/1.1\r\n", host, "Transfer-Encoding: chunked\r\n\r\n1;",
                        std::string(1 << 20, 'x')))},
      {"HttpJunk", "^400, 1 ", Raw(std::string(100000, '\xff'))},
      {"HttpHttp2", "^505, 1 ", Raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
      {"HttpTlsToPlaintext", "^400, 1 |^ended",
       Raw(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + "\r\n\r\n")},
  };
}

}  // namespace

std::vector<Attempt> HttpApiAttempts() {
  std::vector<Attempt> all = KeysOverHttp();
  for (auto* more : {&SitesAndPaths, &HostileBytes}) {
    for (Attempt& attempt : more()) all.push_back(std::move(attempt));
  }
  return all;
}

}  // namespace switchyard
