#include "proto/support/host_port.h"

#include <arpa/inet.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace switchyard::rpc {
namespace {

bool IsBracketed(absl::string_view host) { return host.size() >= 2 && host.front() == '[' && host.back() == ']'; }

absl::Status NotAnAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", text, "\": ", why));
}

// The IPv4 address that `host` is, or that it is with IPv6 around it (mapped).
struct V4 {
  bool found = false;
  uint8_t bytes[4] = {};
};

V4 AsV4(const std::string& host) {
  V4 v4;
  v4.found = inet_pton(AF_INET, host.c_str(), v4.bytes) == 1;
  in6_addr v6;
  if (!v4.found && inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_V4MAPPED(&v6)) {
    v4.found = true;
    std::memcpy(v4.bytes, v6.s6_addr + 12, sizeof(v4.bytes));
  }
  return v4;
}

}  // namespace

std::string BareHost(absl::string_view host) {
  return std::string(IsBracketed(host) ? host.substr(1, host.size() - 2) : host);
}

std::string JoinHostPort(absl::string_view host, int port) {
  const std::string bare = BareHost(host);
  const bool v6 = bare.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", bare, "]:", port) : absl::StrCat(bare, ":", port);
}

absl::StatusOr<HostPort> SplitHostPort(absl::string_view text) {
  if (const size_t scheme = text.find("://"); scheme != absl::string_view::npos) {
    return NotAnAddress(text, absl::StrCat("must be HOST:PORT; leave \"", text.substr(0, scheme + 3), "\" away"));
  }
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &out.port) || out.port < 1 ||
      out.port > 65535) {
    return NotAnAddress(text, "must be HOST:PORT with a port of 1 to 65535");
  }
  const absl::string_view host = text.substr(0, colon);
  if (!IsBracketed(host) && host.find(':') != absl::string_view::npos) {
    return NotAnAddress(text, "an IPv6 address stands in brackets: [::1]:50051");
  }
  out.host = BareHost(host);
  if (out.host.empty()) return NotAnAddress(text, "must be HOST:PORT, the host is missing");
  return out;
}

bool IsLoopback(absl::string_view host) {
  const std::string bare = BareHost(host);
  if (bare == "localhost") return true;
  if (const V4 v4 = AsV4(bare); v4.found) return v4.bytes[0] == 127;
  in6_addr v6;  // a name such as 127.example.org is none
  return inet_pton(AF_INET6, bare.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsIpv6(absl::string_view host) {
  in6_addr v6;
  return inet_pton(AF_INET6, BareHost(host).c_str(), &v6) == 1;
}

bool IsEveryAddress(absl::string_view host) {
  const std::string bare = BareHost(host);
  if (const V4 v4 = AsV4(bare); v4.found)
    return v4.bytes[0] == 0 && v4.bytes[1] == 0 && v4.bytes[2] == 0 && v4.bytes[3] == 0;
  in6_addr v6;
  return inet_pton(AF_INET6, bare.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

}  // namespace switchyard::rpc
