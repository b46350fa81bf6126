#!/usr/bin/env bash
# Checks with spin, in every order of events, that the collectives of a training step cannot deadlock (collectives.pml), nor their
# frames on shared connections (connections.pml), and that designs which can are found out.  usage: run.sh [LAYERS]
# Installs spin and gcc where they are missing and root asks; ends with 77, "skipped", where they cannot be had.
set -uo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
layers="${1:-2}"

missing=()
for tool in spin gcc; do command -v "$tool" > /dev/null || missing+=("$tool"); done
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ]; then
  DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -qq "${missing[@]}" > /dev/null 2>&1
fi
for tool in "${missing[@]}"; do
  command -v "$tool" > /dev/null || { echo "skipped: there is no $tool here, and it could not be installed"; exit 77; }
done

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
bad=0

# check MODEL WANTED NAME FLAGS…: WANTED is "none" or "deadlock".
check() {
  local model="$here/$1.pml" wanted="$2" name="$3" out found="none" states
  shift 3
  # (An aborted search says neither: it is no answer.)
  spin -a "$@" "$model" > spin.txt 2>&1 && gcc -w -O2 -DSAFETY -DNOCLAIM -DCOLLAPSE -DMEMLIM=1800 -o pan pan.c ||
    { cat spin.txt; echo "$name: the model does not compile"; bad=1; return; }
  out="$(timeout 300 ./pan -m100000 -n -w22 2>&1)"
  states="$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' <<< "$out")"
  if grep -q "invalid end state (" <<< "$out"; then
    found="deadlock"
  elif ! grep -q "errors: 0" <<< "$out" || grep -qE "MEMLIM bound|max search depth too small|interrupted" <<< "$out"; then
    found="no answer"
  fi
  printf '%-40s %10s states: %s\n' "$name" "$states" "$([ "$found" = none ] && echo "no deadlock" || echo "$found")"
  if [ "$found" != "$wanted" ]; then
    echo "  wrong: expected $wanted"
    bad=1
  fi
}

check collectives none "two channels" -DLAYERS="$layers" -DTWO_CHANNELS
check collectives none "two channels, two sums at a time" -DLAYERS="$layers" -DTWO_CHANNELS -DWINDOW=2
check collectives none "tickets of rank 0" -DLAYERS="$layers" -DTICKETS
check collectives none "two steps of one layer" -DLAYERS=1 -DSTEPS=2 -DTWO_CHANNELS
check collectives none "a repack between two steps" -DLAYERS=1 -DSTEPS=2 -DTWO_CHANNELS -DWINDOW=2 -DREPACK
check collectives none "dense state sharded" -DLAYERS="$layers" -DTWO_CHANNELS -DZERO
check collectives none "dense state sharded, a repack" -DLAYERS=1 -DSTEPS=2 -DTWO_CHANNELS -DWINDOW=2 -DREPACK -DZERO
check collectives deadlock "weights within backward on one rank" -DLAYERS="$layers" -DTWO_CHANNELS -DZERO -DEARLY_WEIGHTS
check collectives none "layers' sums in a mesh" -DLAYERS="$layers" -DTWO_CHANNELS -DLAYER_SUMS
check collectives none "layers' sums, and a repack" -DLAYERS=1 -DSTEPS=2 -DTWO_CHANNELS -DWINDOW=2 -DREPACK -DLAYER_SUMS
check collectives deadlock "columns before rows on two ranks" -DLAYERS="$layers" -DTWO_CHANNELS -DLAYER_SUMS -DCOLUMNS_FIRST
check collectives deadlock "layers' sums in the gradients' class" -DLAYERS="$layers" -DTWO_CHANNELS -DLAYER_SUMS -DONE_CLASS
check collectives deadlock "a local queue, as in the paper" -DLAYERS="$layers" -DLOCAL_QUEUE
check collectives deadlock "a rank with an order of its own" -DLAYERS="$layers" -DTWO_CHANNELS -DOWN_ORDER
check collectives deadlock "rows before a gather on one rank" -DLAYERS="$layers" -DTWO_CHANNELS -DLATE_GATHER
check collectives deadlock "words within backward on one rank" -DLAYERS="$layers" -DTWO_CHANNELS -DEARLY_WORDS
check collectives deadlock "a rank that does not repack" -DLAYERS=1 -DSTEPS=2 -DTWO_CHANNELS -DREPACK -DOWN_DECISION
check connections none "frames with grants" -DGRANTS
check connections none "frames with grants, and layers' sums" -DGRANTS -DLAYER_SUMS
check connections none "frames with grants, two sums at a time" -DGRANTS -DWINDOW=2 -DAT_ONCE
check connections deadlock "frames in one queue" -DONE_QUEUE
check connections deadlock "one queue, two sums at a time" -DONE_QUEUE -DWINDOW=2 -DAT_ONCE
check connections deadlock "a word before rows on one rank" -DGRANTS -DEARLY_WORD
check connections deadlock "frames without credit" -DNO_CREDIT
exit $bad
