#!/usr/bin/env bash
# deploy/slurm/switchyard.sbatch under a real Slurm of one node on loopback (Debian's slurm-wlm, with munge): a job of a server and two workers
# serves, answers, outlives a killed worker, and ends by scancel.  As root.  usage: check_slurm.sh [BUILD_DIR]
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$PWD
bin=$(realpath "${1:-build/release}/bin")
[ "$(id -u)" -eq 0 ] || { echo "skipped: Slurm's daemons need root"; exit 77; }
if ! command -v slurmctld slurmd munged sbatch >/dev/null; then
  apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurm-wlm munge >/dev/null
fi
work=$(mktemp -d)
chmod 755 "$work"
pids=() job=
end() {
  [ -z "$job" ] || scancel --signal=KILL --full "$job" 2>/dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  # What a failed job left, known by a folder that only this run has.
  for pid in $(pgrep -f -- "^$work/prefix/bin/switchyard"); do kill -KILL "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap end EXIT
fail() { echo "FAILED: $1"; tail -n 25 "$work"/*.log "$work"/slurm-*.out 2>/dev/null; exit 1; }
wait_for() {  # WHAT COMMAND...
  local what=$1
  shift
  for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done
  fail "$what"
}

# A munge of its own: another key and socket than the machine may have.
munge_socket=$work/munge/socket
mkdir -m 755 "$work/munge"
head -c 1024 /dev/urandom >"$work/munge/key" && chmod 600 "$work/munge/key"
munged --foreground --force --key-file="$work/munge/key" --socket="$munge_socket" --pid-file="$work/munge/pid" --log-file="$work/munge/log" \
  --seed-file="$work/munge/seed" >"$work/munged.log" 2>&1 &
pids+=($!)

host=$(hostname -s)
cat >"$work/slurm.conf" <<END
ClusterName=check
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$munge_socket
CredType=cred/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=60
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldParameters=enable_configless
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
mkdir "$work/state" "$work/spool"
export SLURM_CONF=$work/slurm.conf
wait_for "munge does not answer" munge -S "$munge_socket" -n
slurmctld -D -f "$SLURM_CONF" >"$work/slurmctld.log" 2>&1 &
pids+=($!)
slurmd -D -f "$SLURM_CONF" >"$work/slurmd.log" 2>&1 &
pids+=($!)
wait_for "the node is not idle" sh -c 'sinfo -h -o %T | grep -qx idle'

cd "$work"
mkdir prefix && ln -s "$bin" prefix/bin
port=$((20000 + RANDOM % 20000))
job=$(MODEL=$tree/deploy/demo-model PREFIX=$work/prefix PORT=$port LISTEN=127.0.0.1 sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --overcommit \
  --output="$work/slurm-%j.out" "$tree/deploy/slurm/switchyard.sbatch" --metrics_port=-1) || fail "sbatch ended with $?"
run=$work/switchyard-$job
wait_for "the job wrote no address" test -s "$run/address"
address=$(cat "$run/address")
[ "$(stat -c %a "$run/key" "$run/token" "$run/keys" | sort -u)" = 600 ] || fail "others may read the job's secrets"
client=(--server="127.0.0.1:${address##*:}" --api_key_file="$run/key")
ready() { "$bin/switchyard" status "${client[@]}" --wait=60 >status.log 2>&1 && [ "$(grep -cE '^ +[01] +[0-9]+ .* ready ' status.log)" = 2 ]; }
ready || fail "there are not two workers"
"$bin/switchyard" generate "${client[@]}" --text="In the beginning" --max_tokens=16 >answer.log 2>&1 || fail "generate ended with $?"
[ "$(wc -w <answer.log)" -gt 3 ] || fail "no answer"
url=$(cat "$run/url")
[ "$url" = "http://127.0.0.1:$((port + 3))" ] || fail "the job's URL is $url"
printf 'header = "Authorization: Bearer %s"\n' "$(cat "$run/key")" |
  curl -sS --max-time 60 -K - "$url/v1/completions" -d '{"prompt": "In the beginning", "max_tokens": 4}' >http.log 2>&1
grep -q '"completion_tokens":4' http.log || fail "no answer over HTTP: $(cat http.log)"
# A worker that is killed comes back.
pid=$(sed -nE 's/^ +1 +([0-9]+) .*/\1/p' status.log)
[ "$(readlink -f "/proc/$pid/exe")" = "$(readlink -f "$bin/switchyard-worker")" ] && kill -KILL "$pid"
came_back() { ready && ! grep -qE " $pid " status.log; }
wait_for "a killed worker does not come back" came_back
scancel --signal=TERM --batch "$job" || fail "scancel ended with $?"
wait_for "the job does not end" sh -c "[ -z \"\$(squeue -h -j $job -t RUNNING,COMPLETING -o %i 2>/dev/null)\" ]"
grep -q 'stopped$' "slurm-$job.out" || fail "the server did not stop by itself"
grep -q 'JobState=COMPLETED' <<<"$(scontrol -o show job "$job")" || fail "the job ended as $(scontrol -o show job "$job" | grep -o 'JobState=[A-Z]*')"
[ ! -e "$run/key" ] && [ ! -e "$run/token" ] && [ ! -e "$run/url" ] || fail "the job left its secrets"
echo "a job of a server and two workers served, outlived a killed worker, and ended"
