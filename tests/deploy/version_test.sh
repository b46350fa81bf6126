#!/usr/bin/env bash
# All programs print one version: the number in CMakeLists.txt, and the commit of the tree; "unknown" where the tree is no repository.
# usage: version_test.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }

number=$(sed -nE 's/^project\(switchyard VERSION ([0-9.]+) .*/\1/p' CMakeLists.txt)
describe() { cmake -DSOURCE="$1" -DVERSION="$number" -DOUT="$work/version.cc" -P deploy/cmake/SyVersion.cmake; sed -nE 's/.*return "(.*)";.*/\1/p' "$work/version.cc"; }

mkdir "$work/tree"
[ "$(describe "$work/tree")" = "$number (unknown)" ] || fail "a tree without a repository: $(describe "$work/tree")"
mkdir "$work/tree/.git"  # as if git could not read it
[ "$(describe "$work/tree")" = "$number (unknown)" ] || fail "an unreadable repository: $(describe "$work/tree")"
rmdir "$work/tree/.git"
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git -C "$work/tree" init -q && echo one >"$work/tree/file" && git -C "$work/tree" add file && git -C "$work/tree" commit -qm one
commit=$(git -C "$work/tree" rev-parse --short=8 HEAD)
[ "$(describe "$work/tree")" = "$number ($commit)" ] || fail "a repository at $commit: $(describe "$work/tree")"
git -C "$work/tree" tag v9
[ "$(describe "$work/tree")" = "$number ($commit)" ] || fail "a repository with a tag: $(describe "$work/tree")"
echo two >"$work/tree/file"
[ "$(describe "$work/tree")" = "$number ($commit-changed)" ] || fail "a changed repository: $(describe "$work/tree")"

# What was built may be older than the tree is now: the programs say the same, in the right form.
said=$("$build/bin/switchyard" --version | sed 's/^switchyard //')
[[ "$said" =~ ^"$number (unknown)"$ || "$said" =~ ^"$number "\([0-9a-f]{8,}(-changed)?\)$ ]] || fail "switchyard --version: $said"
for program in switchyard-quantize switchyard-server switchyard-worker; do
  [ "$("$build/bin/$program" --version)" = "$program $said" ] || fail "$program --version: $("$build/bin/$program" --version)"
done
[ "$(grep -rnF "$number" --include='*.cc' --include='*.h' server workers clients scheduler proto | grep -vc '//' || true)" = 0 ] || fail "$number is typed in a source, too"
echo "version $said"
