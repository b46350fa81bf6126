#!/usr/bin/env bash
# The scripts of `switchyard completion` and --completion complete commands, flags and values in bash; where zsh is installed, there too.
# usage: completion_test.sh BIN_DIR
set -euo pipefail
bin=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $1"; exit 1; }

"$bin/switchyard" completion bash >cli.bash
for program in server worker; do "$bin/switchyard-$program" --completion=bash >$program.bash; done
for file in *.bash; do bash -n $file; . ./$file; done

# Completes a line, which ends where the cursor is; bash breaks words at "=".
complete_line() {
  local function=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  $function
  printf '%s\n' "${COMPREPLY[@]}"
}
# Not by a pipe: grep -q ends at its first match, and what still writes then fails by SIGPIPE.
has() { grep -qxF -- "$1" <<<"$(complete_line "${@:2}")" || fail "no $1 after: ${*:3}"; }
has_not() { ! grep -qxF -- "$1" <<<"$(complete_line "${@:2}")" || fail "$1 after: ${*:3}"; }

has generate _switchyard switchyard ""
has completion _switchyard switchyard comp
has_not generate _switchyard switchyard generate ""
has --version _switchyard switchyard --
has submit _switchyard switchyard train ""
has --architecture= _switchyard switchyard train submit --arch
has --max_tokens= _switchyard switchyard generate --max
has_not --max_tokens= _switchyard switchyard status --max
has --model= _switchyard_server switchyard-server --mod
has --insecure _switchyard_server switchyard-server --ins
has --config= _switchyard_server switchyard-server --local_workers = 2 --con
has exact _switchyard_server switchyard-server --combine =
has added _switchyard_server switchyard-server --combine = ad
has_not exact _switchyard_server switchyard-server --combine = ad
has true _switchyard_server switchyard-server --prefix_reuse = t
mkdir models
has models _switchyard_server switchyard-server --model = mo
has --server= _switchyard_worker switchyard-worker --ser
# As every flag of --help, so every flag completes.
for program in server worker; do
  complete_line _switchyard_$program switchyard-$program -- | sed 's/=$//' | sort >completed
  "$bin/switchyard-$program" --help | grep -oE '^  --[a-z_0-9]+' | tr -d ' ' | sort >helped
  comm -23 helped completed >missing
  [ ! -s missing ] && [ "$(wc -l <completed)" -gt 20 ] || fail "switchyard-$program does not complete: $(tr '\n' ' ' <missing)"
done
"$bin/switchyard" completion fish >out 2>&1 && fail "there is no completion for fish"
grep -q 'must be bash or zsh' out || fail "fish: $(cat out)"

command -v zsh >/dev/null || { echo "bash completes; zsh is not installed"; exit 0; }
"$bin/switchyard" completion zsh >_switchyard
"$bin/switchyard-server" --completion=zsh >_switchyard-server
cat >ask.zsh <<'END'
function compdef { }
function compset { words[CURRENT]=${words[CURRENT]#*=} }
function _files { print files }
function compadd { for w in "$@"; do [[ $w == ${words[CURRENT]}* && $w != -- && $w != -S && -n $w ]] && print -r -- $w; done }
source ./$1 && words=("${@:3}") CURRENT=$(($# - 2)) && { $2; true }
END
grep -qx submit <<<"$(zsh -f ask.zsh _switchyard _switchyard switchyard train sub)" || fail "zsh: train sub"
grep -qx -- --max_tokens= <<<"$(zsh -f ask.zsh _switchyard _switchyard switchyard generate --max_tok)" || fail "zsh: generate --max_tok"
grep -qx added <<<"$(zsh -f ask.zsh _switchyard-server _switchyard_server switchyard-server --combine=ad)" || fail "zsh: --combine=ad"
grep -qx files <<<"$(zsh -f ask.zsh _switchyard-server _switchyard_server switchyard-server --model=x)" || fail "zsh: --model=x"
echo "bash and zsh complete"
