#!/usr/bin/env bash
# The alerts of deploy/prometheus say what they should, when they should; each has a case in which it fires, and one in which it does not.
set -euo pipefail
command -v promtool >/dev/null || { echo "skipped: promtool is not installed; deploy/install-deps.sh --tests brings it"; exit 77; }
cd "$(dirname "$0")"
promtool check rules ../../deploy/prometheus/alerts.yaml
promtool test rules alerts_test.yaml alerts_serving_test.yaml
bad=0
for name in $(sed -n 's/^ *- alert: //p' ../../deploy/prometheus/alerts.yaml); do
  grep -qE "alertname: $name, exp_alerts: \[\]" alerts*_test.yaml || { echo "$name: no case in which it does not fire"; bad=1; }
  grep -qE "^ *alertname: $name$" alerts*_test.yaml || { echo "$name: no case in which it fires"; bad=1; }
done
exit $bad
