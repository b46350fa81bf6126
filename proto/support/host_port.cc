#include "proto/support/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace switchyard::rpc {
namespace {

bool IsBracketed(absl::string_view host) { return host.size() >= 2 && host.front() == '[' && host.back() == ']'; }

absl::Status NotAnAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", text, "\": ", why));
}

// Parses an IP address, with IPv4 mapped into IPv6; nullopt for a name such as 127.example.org.
std::optional<in6_addr> ParseIp(absl::string_view host) {
  const std::string bare = BareHost(host);
  in6_addr ip = {};
  if (inet_pton(AF_INET6, bare.c_str(), &ip) == 1) return ip;
  ip = {};
  ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
  if (inet_pton(AF_INET, bare.c_str(), ip.s6_addr + 12) == 1) return ip;
  return std::nullopt;
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
  if (BareHost(host) == "localhost") return true;
  const std::optional<in6_addr> ip = ParseIp(host);
  if (!ip.has_value()) return false;
  return IN6_IS_ADDR_V4MAPPED(&*ip) ? ip->s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&*ip) != 0;
}

bool IsIpv6(absl::string_view host) {
  in6_addr ip;
  return inet_pton(AF_INET6, BareHost(host).c_str(), &ip) == 1;
}

bool IsEveryAddress(absl::string_view host) {
  const std::optional<in6_addr> ip = ParseIp(host);
  if (!ip.has_value()) return false;
  const uint8_t* const last = ip->s6_addr + 12;
  return IN6_IS_ADDR_V4MAPPED(&*ip) ? std::all_of(last, last + 4, [](uint8_t byte) { return byte == 0; })
                                    : IN6_IS_ADDR_UNSPECIFIED(&*ip) != 0;
}

}  // namespace switchyard::rpc
