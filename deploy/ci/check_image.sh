#!/usr/bin/env bash
# Of the image what can be read without building it (Debian 12 has no builder that needs no rights): stages have names, COPY takes what exists,
# instructions are in the exec form, its user is the chart's, and its health check is a command that there is.  usage: check_image.sh [BIN_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-}
fail() { echo "FAILED: $1"; exit 1; }

stages=$(sed -nE 's/^FROM [^ ]+ AS ([a-z]+)$/\1/p' Dockerfile)
[ "$(grep -c '^FROM ' Dockerfile)" -eq "$(wc -l <<<"$stages")" ] || fail "Dockerfile: a stage without a name"
grep '^COPY ' Dockerfile | while read -r _ first rest; do
  case "$first" in
    --from=*) grep -qxF "${first#--from=}" <<<"$stages" || fail "Dockerfile: no stage ${first#--from=}" ;;
    *) [ -e "$first" ] || fail "Dockerfile: COPY $first: there is none" ;;
  esac
done || exit 1
! grep -E '^ *(ENTRYPOINT|CMD) [^[]' Dockerfile || fail "Dockerfile: not in the exec form"
for word in 'USER [0-9]' HEALTHCHECK ENTRYPOINT LABEL; do grep -q "^$word" Dockerfile || fail "Dockerfile: no $word"; done
# As the programs' own names and the chart's user are.
grep -q 'runAsUser: 10001' deploy/k8s/switchyard/templates/_helpers.tpl && grep -q '^USER 10001:10001' Dockerfile || fail "image and chart have different users"
if [ -n "$bin" ]; then
  grep -q -- '--health=alive|ready' <<<"$("$bin/switchyard" help status)" || fail "the image's HEALTHCHECK asks what the CLI does not know"
fi
echo "the Dockerfile reads well; it was not built"
