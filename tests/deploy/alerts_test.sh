#!/usr/bin/env bash
# The alerts of deploy/prometheus say what they should, when they should.
set -euo pipefail
command -v promtool >/dev/null || { echo "skipped: promtool is not installed; deploy/install-deps.sh --tests brings it"; exit 77; }
cd "$(dirname "$0")"
promtool check rules ../../deploy/prometheus/alerts.yaml
promtool test rules alerts_test.yaml
