#!/usr/bin/env bash
# Documents name only what exists: relative links, flags of our programs in some pages, tests in tests/fault/README.md.  usage: check_docs.sh [root] [bindir]
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"
bin=${2:-}
bad=0
while read -r file; do
  dir=$(dirname "$file")
  while read -r target; do
    path=${target%%#*}
    [ -z "$path" ] && continue
    [ -e "$dir/$path" ] || { echo "$file: dead link $target"; bad=1; }
  done < <(awk '/^```/ { code = !code; next } !code { gsub(/`[^`]*`/, ""); print }' "$file" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(//; s/\)$//' | grep -vE '^(https?:|mailto:)' || true)
done < <(git ls-files --cached --others --exclude-standard '*.md')

# `Suite.Test` is a test, `Suite/Row` a row of its table.
all=$(cat $(git ls-files --cached --others --exclude-standard 'tests/*_test.cc' 'tests/fault/*.cc' 'tests/*.h'))
while read -r name; do
  suite=${name%%[./]*} part=${name#*[./]}
  case "$name" in
    *.*) pattern="TEST(_[FP])?\\($suite, *$part\\)" ;;
    */*) pattern="(\\{|[(] *)\"$part\"|^ +\"$part\",|[A-Za-z]\\{\"$part\"" ;;
  esac
  grep -qE "$pattern" <<<"$all" || { echo "tests/fault/README.md: no test $name"; bad=1; }
done < <(grep -oE '`[A-Z][A-Za-z]+[./][A-Za-z0-9_]+`' tests/fault/README.md | tr -d '`' | grep -vE '^Suite[./]' | sort -u)

if [ -n "$bin" ] && [ -x "$bin/switchyard-server" ]; then
  known=$({ "$bin/switchyard-server" --help; "$bin/switchyard-worker" --help; for c in generate chat tokenize detokenize status experts bench "trace record" "trace replay" profile "profile save" "profile merge" "train submit" "train fork" "train list" "train get" "train watch" "train pause" "train resume" "train cancel" "train delete" "data pack" "keys new" quantize; do "$bin/switchyard" help $c; done; } 2>&1 | grep -oE '\-\-[a-z][a-z_0-9]+' | sort -u)
  for page in README.md server/README.md deploy/README.md SECURITY.md; do
    for flag in $(grep -v 'hf download' "$page" | grep -oE '(^|[ `])--[a-z][a-z_0-9-]+' | grep -oE '\-\-[a-z_0-9-]+' | sort -u); do
      case "$flag" in
        --once|--full|--quick|--cuda|--target|--preset) continue ;;                              # of scripts
        --batch|--cacert|--from-file|--health-cmd|--nodes|--rm|--set|--signal) continue ;;  # of Slurm, curl, kubectl, docker, helm
      esac
      grep -qxF -- "${flag//-/_}" <<<"${known//-/_}" || { echo "$page: no program knows $flag"; bad=1; }
    done
  done
fi
exit $bad
