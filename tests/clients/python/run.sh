#!/usr/bin/env bash
# Makes the wheel of clients/python as users do, and from the source distribution, which must be the same; installs it into a fresh environment,
# with the newest and with the oldest dependencies that it names; runs the tests there against a server on the demo model, and `mypy --strict`.
# usage: run.sh BIN_DIR [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/../../.."
SY_TEST_BIN_DIR=$(realpath "$1")
export SY_TEST_BIN_DIR PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PYTHONDONTWRITEBYTECODE=1
python=${2:-python3}
unset ${!SWITCHYARD_*}
"$python" -c 'import ensurepip, venv' 2>/dev/null || { [ "$(id -u)" -eq 0 ] && apt-get update >/dev/null && apt-get install -y --no-install-recommends python3-venv >/dev/null; } ||
  { echo "skipped: no python3-venv"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
since=$SECONDS
seconds() { printf '%-40s %4d s\n' "$1" $((SECONDS - since)); since=$SECONDS; }
pip() { timeout 300 "$work/$1/bin/python" -m pip -q "${@:2}" >>"$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "FAILED: pip ${*:2}"; return 1; }; }

"$python" -m venv "$work/build"
mapfile -t needs < <(sed -n 's/^requires = \[\(.*\)\]/\1/p' clients/python/pyproject.toml | tr -d '" ' | tr , '\n')
pip build install "${needs[@]}" || { echo "skipped: no packages from PyPI"; exit 77; }
(cd clients/python && "$work/build/bin/hatchling" build -t sdist -d "$work/sdist") >/dev/null
mkdir "$work/elsewhere" && tar -xzf "$work"/sdist/switchyard-*.tar.gz -C "$work/elsewhere"
pip build wheel --no-build-isolation --no-deps -w "$work/of_sdist" "$work"/elsewhere/switchyard-*
pip build wheel --no-deps -w "$work/wheel" clients/python
wheel=$(echo "$work"/wheel/switchyard-*.whl)
cmp "$wheel" "$work/of_sdist/$(basename "$wheel")"
SWITCHYARD_WHEEL_BIN_DIR=$SY_TEST_BIN_DIR pip build wheel --no-build-isolation --no-deps -w "$work/with_programs" clients/python
seconds "wheels"

"$python" -m venv "$work/newest"
pip newest install "$wheel"
version=$(sed -nE 's/^project\(switchyard VERSION ([^ ]+).*/\1/p' CMakeLists.txt)
[ "$("$work/newest/bin/python" -c 'import switchyard; print(switchyard.__version__)')" = "$version" ]
"$work/newest/bin/python" -m unittest discover -s tests/clients/python -p '*_test.py'
seconds "tests, newest dependencies"

"$python" -m venv "$work/oldest"
sed -nE 's/^  "([a-z-]+)>=([0-9.]+),.*/\1==\2/p' clients/python/pyproject.toml >"$work/oldest.txt"
pip oldest install -c "$work/oldest.txt" "$work"/with_programs/switchyard-*.whl
"$work/oldest/bin/python" -m unittest tests/clients/python/values_test.py
(cd tests/clients/python && exec "$work/oldest/bin/python" - "$PWD/../../..") <<'PYTHON'
import os, sys
sys.path.insert(0, os.getcwd())
os.chdir(sys.argv[1])
import serving, switchyard
# Of the programs in the wheel, which the script finds without any variable.
one = serving.Server([os.path.join(sys.prefix, "bin/switchyard"), "serve", serving.MODEL, "--port=0", "--metrics_port=-1", "--http_port=-1"],
                     env={"PATH": "/usr/bin:/bin"})
try:
    with switchyard.Client(one.address) as client:
        client.wait_ready(serving.SOON)
        assert client.generate("The sea", max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
finally:
    assert one.stop() == 0
PYTHON
seconds "oldest dependencies, wheel with programs"

pip newest install mypy types-grpcio types-protobuf
"$work/newest/bin/python" -m mypy --strict --cache-dir="$work/mypy" -p switchyard
"$work/newest/bin/python" -m mypy --strict --cache-dir="$work/mypy" clients/python/switchyard_programs.py tests/clients/python/example.py
seconds "mypy"
