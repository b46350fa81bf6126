#!/usr/bin/env bash
# The services of deploy/systemd are what systemd takes, stop later than the server does, and are hardened (systemd's own score).
# usage: check_units.sh [BIN_DIR]   With BIN_DIR the server is asked for the default of --drain_timeout.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }

for unit in deploy/systemd/*.service; do
  stop=$(sed -nE 's/^TimeoutStopSec=([0-9]+)$/\1/p' "$unit")
  drain=25
  [ -z "$bin" ] || drain=$("$bin/switchyard-server" --help | tr '\n' ' ' | sed -nE 's/.*--drain_timeout=TIME[^(]*\(default ([0-9]+)s\).*/\1/p')
  [ -n "$drain" ] || fail "--help has no default of --drain_timeout"
  [ "$stop" -gt $((drain + 10)) ] || fail "$unit: TimeoutStopSec=$stop is not well above --drain_timeout=${drain}s"
  grep -q '^NoNewPrivileges=yes' "$unit" && grep -q '^User=switchyard' "$unit" || fail "$unit: not hardened"
done
grep -q '^Type=notify' deploy/systemd/switchyard.service && grep -q '^KillMode=mixed' deploy/systemd/switchyard.service || fail "switchyard.service: Type, KillMode"

command -v systemd-analyze >/dev/null || { echo "skipped: systemd-analyze is not installed; deploy/install-deps.sh --tests brings it"; exit 77; }
for unit in deploy/systemd/*.service; do
  # The programs are not installed here.
  sed -E 's#^(ExecStart=)/usr/bin/switchyard-[a-z]+#\1/bin/true#' "$unit" >"$work/${unit##*/}"
  systemd-analyze verify --man=no "$work/${unit##*/}" >"$work/said" 2>&1 || fail "$unit: $(cat "$work/said")"
  [ ! -s "$work/said" ] || fail "$unit: $(cat "$work/said")"
  score=$(systemd-analyze security --offline=yes "$work/${unit##*/}" 2>/dev/null | sed -nE 's/.*exposure level for [^:]*: ([0-9]+)\..*/\1/p')
  [ -n "$score" ] && [ "$score" -lt 5 ] || fail "$unit: exposure level $score"
done
echo "services are valid"
