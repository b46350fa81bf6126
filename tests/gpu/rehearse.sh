#!/usr/bin/env bash
# Rehearses an hour on a GPU on the emulation of CUDA, by the same scripts under the same limits of size and time: a clean clone, a pack, a machine
# that has only the tracked tree and the pack; a first command that is killed, a second that goes on behind it, the benchmark.
# usage: tests/gpu/rehearse.sh [--minutes=9] [--killed_after=60]     minutes of a command; seconds until the first is killed
set -euo pipefail
cd "$(dirname "$0")/../.."
minutes=9 killed_after=60
for argument in "$@"; do
  case "$argument" in
    --minutes=*) minutes=${argument#*=} ;;
    --killed_after=*) killed_after=${argument#*=} ;;
    *) echo "rehearse.sh: cannot take $argument" >&2; exit 2 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "rehearse.sh: $1" >&2; exit 1; }
# limited SECONDS NAME COMMAND...: sets `status`; the command's time is printed, and kept.
limited() {
  local seconds=$1 name=$2 began=$SECONDS
  shift 2
  status=0
  timeout -s KILL "$seconds" "$@" >"$work/$name.log" 2>&1 || status=$?
  tail -n 12 "$work/$name.log" | cut -c1-200
  echo "--- $name: status $status, $((SECONDS - began)) s"
}

git clone -q . "$work/clone"
(cd "$work/clone" && tests/gpu/pack.sh --emulated)
machine=$work/machine
mkdir -p "$machine/build/gpu"
git -C "$work/clone" archive HEAD | tar -C "$machine" -x
cp "$work/clone/build/gpu/pack.tar.xz" "$machine/build/gpu/"
echo "--- what travels: $(du -sm --apparent-size "$machine" | cut -f1) MiB"
cd "$machine"

limited "$killed_after" killed env OUT="$work/first" tests/gpu/run.sh --minutes="$minutes"
[ "$status" -eq 137 ] || fail "the first run was to be killed, not status $status"
kept=$(grep -cP '\t(ok|skipped)\t' "$work/first/results.tsv") || fail "the killed run left no result"
limited $((minutes * 60 + 15)) resumed env OUT="$work/second" tests/gpu/run.sh --minutes="$minutes" --resume="$work/first"
[ "$status" -eq 0 ] || [ "$status" -eq 3 ] || fail "the second run failed"
cmp <(head -n "$kept" "$work/first/results.tsv") <(head -n "$kept" "$work/second/results.tsv") || fail "the second run did not go on behind the first"
[ -z "$(tail -n +2 "$work/second/results.tsv" | cut -f1,2 | sort | uniq -d)" ] || fail "a test ran twice"
limited $((minutes * 60 + 15)) bench env OUT="$work/second" tests/bench/run.sh gpu --pack=build/gpu/pack.tar.xz --minutes="$minutes" --tiny
[ "$status" -eq 0 ] || fail "the benchmark failed"
[ "$(find "$work/second" -type f | wc -l)" -le 8 ] || fail "more than 8 files in \$OUT"
echo "rehearsed: $kept results before the kill, $(($(wc -l <"$work/second/results.tsv") - 1)) in all, $(wc -l <"$work/second/left_out.txt") left out"
