#include "server/admission/peer_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "proto/support/host_port.h"

namespace switchyard::server {
namespace {

constexpr absl::string_view kRelayed = "unix-abstract:";
constexpr size_t kNetworkBytes = 8;  // of a /64

// Of an address that may have a scope.
absl::string_view FamilyOf(absl::string_view address) { return absl::StrContains(address, ':') ? "ipv6:" : "ipv4:"; }

// Decodes %XX.
std::string PercentDecoded(absl::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const bool encoded =
        text.size() >= 3 && text[0] == '%' && absl::ascii_isxdigit(text[1]) && absl::ascii_isxdigit(text[2]);
    plain += encoded ? absl::HexStringToBytes(text.substr(1, 2)) : std::string(text.substr(0, 1));
    text.remove_prefix(encoded ? 3 : 1);
  }
  return plain;
}

}  // namespace

std::string RelayedName(absl::string_view address, int port, absl::string_view id) {
  const absl::string_view family = FamilyOf(address);
  return absl::StrCat(family, rpc::JoinHostPort(address, port), "#", id);
}

std::string RelayedNameOfPeer(absl::string_view peer) {
  return absl::ConsumePrefix(&peer, kRelayed) ? PercentDecoded(peer) : "";
}

std::string PeerOfRelayedName(absl::string_view name) {
  return absl::StrCat(kRelayed, absl::StrReplaceAll(name, {{"%", "%25"}}));
}

std::string DirectPeer(absl::string_view peer) {
  const std::string name = RelayedNameOfPeer(peer);
  return name.empty() ? std::string(peer) : name.substr(0, name.rfind('#'));
}

std::string AddressOfPeer(absl::string_view peer) {
  const std::string direct = DirectPeer(peer);
  if (direct.substr(0, 2) != "ip") return "";
  const size_t family = direct.find(':') + 1;
  const std::string host = direct.substr(family, direct.rfind(':') - family);
  return rpc::BareHost(absl::StrReplaceAll(host, {{"%5B", "["}, {"%5D", "]"}}));
}

std::string ClientOfAddress(absl::string_view address) {
  in6_addr bytes = {};
  const std::string without_scope(address.substr(0, address.find('%')));
  if (inet_pton(AF_INET6, without_scope.c_str(), &bytes) != 1) return std::string(address);
  // All hosts of a link have one such /64.
  if (IN6_IS_ADDR_LINKLOCAL(&bytes) || IN6_IS_ADDR_LOOPBACK(&bytes) || IN6_IS_ADDR_V4MAPPED(&bytes))
    return std::string(address);
  std::fill(bytes.s6_addr + kNetworkBytes, std::end(bytes.s6_addr), 0);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &bytes, text, sizeof(text));
  return absl::StrCat(text, "/64");
}

std::string ClientOfPeer(absl::string_view peer) {
  const std::string address = AddressOfPeer(peer);
  if (address.empty()) return std::string(peer);
  return absl::StrCat(FamilyOf(address), ClientOfAddress(address));
}

}  // namespace switchyard::server
