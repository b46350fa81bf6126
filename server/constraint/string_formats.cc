#include "absl/strings/string_view.h"
#include "server/constraint/json_schema.h"

namespace switchyard::server {
namespace {

// Narrower than RFC 3339 where readers are: years from 1000, at most microseconds, four digits of each part of a
// duration.
#define SY_DATE                                                                                                       \
  "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-" \
  "8]))"
#define SY_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define SY_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define SY_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define SY_H16 "[0-9a-fA-F]{1,4}"

}  // namespace

absl::string_view RegexOfFormat(absl::string_view format) {
  static constexpr struct {
    absl::string_view format, regex;
  } kFormats[] = {
      {"date-time", SY_DATE "T" SY_TIME},
      {"date", SY_DATE},
      {"time", SY_TIME},
      {"duration",
       "P([0-9]{1,4}W|([0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D)"
       "(T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))?|"
       "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))"},
      {"email", "[a-zA-Z0-9_+-]{1,30}(\\.[a-zA-Z0-9_+-]{1,30})?@" SY_LABEL "(\\." SY_LABEL "){1,3}"},
      {"hostname", SY_LABEL "(\\." SY_LABEL "){0,3}"},
      {"ipv4", SY_BYTE "(\\." SY_BYTE "){3}"},
      {"ipv6", "(" SY_H16 ":){7}" SY_H16 "|::|::" SY_H16 "(:" SY_H16 "){0,5}|(" SY_H16 ":){1,6}:" SY_H16},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"uri", "https?://" SY_LABEL "(\\." SY_LABEL
              "){0,3}(:[0-9]{1,4})?(/[a-zA-Z0-9._~-]{0,60}){0,8}(\\?[a-zA-Z0-9._~=&-]{0,100})?"},
      {"uri-reference", "/[a-zA-Z0-9._~-]{0,60}(/[a-zA-Z0-9._~-]{0,60}){0,8}"},
      {"json-pointer", "(/[a-zA-Z0-9._-]{0,60}){0,8}"},
  };
  for (const auto& known : kFormats) {
    if (known.format == format) return known.regex;
  }
  return "";
}

bool IsStandardFormat(absl::string_view format) {
  for (const absl::string_view known :
       {"idn-email", "idn-hostname", "iri", "iri-reference", "uri-template", "relative-json-pointer", "regex"}) {
    if (format == known) return true;
  }
  return false;
}

#undef SY_DATE
#undef SY_TIME
#undef SY_LABEL
#undef SY_BYTE
#undef SY_H16

}  // namespace switchyard::server
