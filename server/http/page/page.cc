#include "server/http/page/page.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "server/http/api_errors.h"
#include "server/http/page/page_files.h"

namespace switchyard::server {
namespace {

constexpr char kContentPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

}  // namespace

void AnswerPageFile(const std::shared_ptr<HttpExchange>& exchange) {
  const std::string& path = exchange->request().path;
  const auto files = PageFiles();
  const auto* const file =
      std::find_if(files.begin(), files.end(), [&](const PageFile& each) { return each.path == path; });
  if (file == files.end())
    return exchange->Reply(ErrorReply(ErrorShape::kOpenAi, 404, absl::StrCat("no such path: ", Quote(path))));
  exchange->Reply({.type = std::string(file->type),
                   .body = std::string(file->text),
                   .headers = {{"Content-Security-Policy", kContentPolicy},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cross-Origin-Resource-Policy", "same-origin"},
                               {"Cache-Control", "no-cache"}}});
}

}  // namespace switchyard::server
