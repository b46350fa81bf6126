#!/usr/bin/env bash
# What `cmake --install` puts into a prefix runs there, without the tree and the build folder, and cpack makes a package of the same files, with
# services and settings.  (deploy/ci/check_deb.sh installs the package.)
# usage: package_test.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
tree=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work"/*.log; exit 1; }
cd "$work"

cmake --install "$build" --component runtime --strip --prefix "$work/prefix" >install.log 2>&1 || fail "cmake --install ended with $?"
(cd prefix && find . -type f | sort) >installed
for file in bin/switchyard{,-quantize,-server,-worker} share/switchyard/demo-model/model.safetensors share/switchyard/proto/switchyard/v1/inference.proto \
  share/switchyard/prometheus/alerts.yaml share/switchyard/grafana/{overview,experts,training}.json share/switchyard/grafana-provisioning/{dashboards,datasources}/switchyard.yaml \
  share/bash-completion/completions/switchyard{,-quantize,-server,-worker} share/zsh/vendor-completions/_switchyard{,-quantize,-server,-worker} share/doc/switchyard/{LICENSE,NOTICE,README.md}; do
  grep -qxF "./$file" installed || fail "$file was not installed"
done
! grep -qE 'test|\.(h|a|py|sh)$' installed || fail "more than the runtime was installed: $(grep -E 'test|\.(h|a|py|sh)$' installed)"

# CUDA's libraries are part of no package here: where the build found them.
cuda=$(readelf -d "$build/bin/switchyard-worker" | sed -nE 's/.*RUNPATH.*\[([^]:]*).*/\1/p')
[ -z "$cuda" ] || export LD_LIBRARY_PATH=$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
prefix/bin/switchyard-server --model=prefix/share/switchyard/demo-model --local_workers=2 --port=0 --metrics_port=-1 >server.log 2>&1 &
server=$!
while ! grep -q ' gRPC on ' server.log; do
  kill -0 "$server" 2>/dev/null && [ $SECONDS -lt 60 ] || fail "the server does not listen"
  sleep 0.05
done
address=$(sed -nE 's/.* gRPC on ([^ ,]*:[0-9]+).*/\1/p' server.log)
prefix/bin/switchyard status --server="$address" --wait=60 >status.log 2>&1 || fail "the server did not become ready"
prefix/bin/switchyard generate --server="$address" --text="In the beginning" --max_tokens=16 >answer.log 2>&1 || fail "generate ended with $?"
[ "$(wc -w <answer.log)" -gt 3 ] || fail "no answer"
kill "$server"
wait "$server" || fail "the server ended with $?"
server=

command -v dpkg-deb >/dev/null || { echo "installed and run; no dpkg-deb, so no package was made"; exit 0; }
cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/deb" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip >cpack.log 2>&1 || fail "cpack ended with $?"
dpkg-deb -c deb/switchyard_*.deb >contents.log
sed -nE '/ \.\/usr\/lib\/systemd\//d; s#^-.* \./usr/#./#p' contents.log | sort | diff installed - >difference.log || fail "the package is not what was installed"
dpkg-deb -f deb/switchyard_*.deb Depends >depends.log
! command -v dpkg-shlibdeps >/dev/null || grep -q 'libgrpc++' depends.log || fail "the package does not depend on gRPC"
for file in ./etc/switchyard/server.yaml ./usr/lib/systemd/system/switchyard.service ./usr/lib/systemd/system/switchyard-worker.service; do
  grep -qE "^-.* root/root .* $file\$" contents.log || fail "$file is not in the package"
done
! grep -vE '^[-d].* root/root +.* \./(usr/.*|etc/(switchyard/.*)?)?$' contents.log || fail "the package has files elsewhere"
grep -qxF /etc/switchyard/server.yaml <<<"$(dpkg-deb -I deb/switchyard_*.deb conffiles)" || fail "the settings are no conffile"
for script in postinst prerm postrm; do dpkg-deb -I deb/switchyard_*.deb $script | sh -n || fail "$script is not in the package"; done
# The settings of the package are flags that the server knows.
prefix/bin/switchyard-server --config="$tree/deploy/debian/server.yaml" --model=/no/such/model >settings.log 2>&1 && fail "no such model"
! grep -E 'unknown flag|yaml:[0-9]+:' settings.log || fail "server.yaml has unknown flags"
echo "a package of $(stat -c %s deb/switchyard_*.deb) bytes"
