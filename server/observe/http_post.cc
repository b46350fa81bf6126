#include "server/observe/http_post.h"

#include <curl/curl.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace switchyard::server {
namespace {

constexpr size_t kMostReplyBytes = size_t{64} << 10;
constexpr absl::Duration kConnectTimeout = absl::Seconds(3);

// libcurl wants this once before any other call, and not from two threads.
void SetUpCurl() {
  static const CURLcode done = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)done;
}

size_t KeepBody(char* bytes, size_t, size_t count, void* body) {
  auto* const text = static_cast<std::string*>(body);
  text->append(bytes, std::min(count, kMostReplyBytes - text->size()));
  return count;
}

int AskWhetherToGiveUp(void* give_up, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<const std::function<bool()>*>(give_up))() ? 1 : 0;
}

// Returns a part of the URL; empty: there is none.
std::string PartOf(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, 0) != CURLUE_OK) return "";
  std::string copy = text;
  curl_free(text);
  return copy;
}

}  // namespace

class HttpPost::Handle {
 public:
  Handle() : easy((SetUpCurl(), curl_easy_init())) {}
  ~Handle() { curl_easy_cleanup(easy); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CURL* const easy;
};

absl::Status HttpPost::CheckUrl(const std::string& url) {
  if (!absl::StartsWithIgnoreCase(url, "http://") && !absl::StartsWithIgnoreCase(url, "https://"))
    return absl::InvalidArgumentError("must begin with http:// or https://");
  SetUpCurl();
  const std::unique_ptr<CURLU, void (*)(CURLU*)> parsed(curl_url(), &curl_url_cleanup);
  const CURLUcode code = curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0);
  if (code != CURLUE_OK) return absl::InvalidArgumentError(absl::StrCat("not a URL (", curl_url_strerror(code), ")"));
  if (!PartOf(parsed.get(), CURLUPART_USER).empty() || !PartOf(parsed.get(), CURLUPART_PASSWORD).empty())
    return absl::InvalidArgumentError("must have no user and password");
  if (!PartOf(parsed.get(), CURLUPART_QUERY).empty() || !PartOf(parsed.get(), CURLUPART_FRAGMENT).empty())
    return absl::InvalidArgumentError("must have no query and no fragment");
  return absl::OkStatus();
}

HttpPost::HttpPost(const std::string& url) : handle_(std::make_unique<Handle>()) {
  CURL* const curl = handle_->easy;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PROXY, "");
  curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(kConnectTimeout)));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &KeepBody);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &AskWhetherToGiveUp);
}

HttpPost::~HttpPost() = default;

absl::StatusOr<HttpPost::Reply> HttpPost::Send(const std::string& type, const std::string& body, absl::Duration timeout,
                                               const std::function<bool()>& give_up) {
  CURL* const curl = handle_->easy;
  Reply reply;
  char why[CURL_ERROR_SIZE] = "";
  curl_slist* headers = curl_slist_append(nullptr, absl::StrCat("Content-Type: ", type).c_str());
  headers = curl_slist_append(headers, "Expect:");  // no pause before the body
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(timeout)));
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reply.body);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &give_up);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  curl_slist_free_all(headers);
  if (code != CURLE_OK) return absl::UnavailableError(why[0] != '\0' ? why : curl_easy_strerror(code));
  long status = 0;
  curl_off_t retry_after = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after);
  reply.status = static_cast<int>(status);
  reply.retry_after = absl::Seconds(retry_after);
  return reply;
}

}  // namespace switchyard::server
