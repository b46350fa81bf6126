#!/usr/bin/env bash
# What `cmake --install` puts into a prefix runs there, without the tree and the build folder, and cpack makes a package of the same files.
# usage: package_test.sh BUILD_DIR
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work"/*.log; exit 1; }
cd "$work"

cmake --install "$build" --component runtime --strip --prefix "$work/prefix" >install.log 2>&1 || fail "cmake --install ended with $?"
(cd prefix && find . -type f | sort) >installed
for file in bin/switchyard{,-server,-worker} share/switchyard/demo-model/model.safetensors share/switchyard/proto/switchyard/v1/inference.proto \
  share/switchyard/prometheus/alerts.yaml share/doc/switchyard/{LICENSE,NOTICE,README.md}; do
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
sed -nE 's#^-.* \./usr/#./#p' contents.log | sort | diff installed - >difference.log || fail "the package is not what was installed"
dpkg-deb -f deb/switchyard_*.deb Depends >depends.log
! command -v dpkg-shlibdeps >/dev/null || grep -q 'libgrpc++' depends.log || fail "the package does not depend on gRPC"
echo "a package of $(stat -c %s deb/switchyard_*.deb) bytes"
