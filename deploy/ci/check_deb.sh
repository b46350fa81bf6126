#!/usr/bin/env bash
# Makes the .deb of a build, installs it into a bare Debian (debootstrap, from this machine's apt sources), serves the demo model there as the
# user and with the settings of the package, asks one prompt, stops; does so again under systemd in a container (systemd-nspawn), where the
# server is also killed and upgraded; and purges.  Prints how many seconds each took.
# As root; needs to mount /proc in a folder.  Two minutes, most for the bare system.  usage: check_deb.sh [BUILD_DIR]
set -euo pipefail
build=$(realpath "${1:-build/release}")
[ "$(id -u)" -eq 0 ] || { echo "skipped: installing into a bare system needs root"; exit 77; }
command -v dpkg-shlibdeps >/dev/null || apt-get install -y --no-install-recommends dpkg-dev >/dev/null
if ! command -v debootstrap >/dev/null; then apt-get update >/dev/null && apt-get install -y --no-install-recommends debootstrap >/dev/null; fi
work=$(mktemp -d)
root=$work/root
server=
end() {
  [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
  for dir in dev/shm dev proc; do mountpoint -q "$root/$dir" && umount -l "$root/$dir"; done
  # Never through a mount that would not end.
  rm -rf --one-file-system "$work"
}
trap end EXIT
fail() { echo "FAILED: $1"; tail -n 20 "$work"/*.log; exit 1; }
inside=(chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C)
within() { "${inside[@]}" "$@"; }
since=$(date +%s)
seconds() { local now; now=$(date +%s); printf '%-28s %4d s\n' "$1" $((now - since)); since=$now; }

cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/deb" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip >"$work/cpack.log" 2>&1 || fail "cpack ended with $?"
deb=$(echo "$work"/deb/switchyard_*.deb)
seconds "package ($(($(stat -c %s "$deb") >> 20)) MiB)"

mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' | head -1)
debootstrap --variant=minbase bookworm "$root" "${mirror:-http://deb.debian.org/debian}" >"$work/debootstrap.log" 2>&1 || fail "debootstrap ended with $?"
# As this machine finds packages; other packagers' sources are of no use here.
cp /etc/resolv.conf "$root/etc/" && cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
[ ! -f /etc/apt/sources.list.d/debian.sources ] || { cp /etc/apt/sources.list.d/debian.sources "$root/etc/apt/sources.list.d/"; : >"$root/etc/apt/sources.list"; }
mount -t proc proc "$root/proc" && mount -t tmpfs -o mode=755 none "$root/dev" && mkdir "$root/dev/shm" && mount -t tmpfs none "$root/dev/shm"
for device in null:3 zero:5 random:8 urandom:9; do mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"; done
within apt-get update >"$work/update.log" 2>&1 || fail "apt-get update ended with $?"
seconds "a bare Debian"

cp "$deb" "$root/root/switchyard.deb"
within apt-get install -y --no-install-recommends /root/switchyard.deb >"$work/install.log" 2>&1 || fail "apt-get install ended with $?"
seconds "installed with packages"
for file in /usr/bin/switchyard{,-server,-worker} /usr/lib/systemd/system/switchyard{,-worker}.service /etc/switchyard/server.yaml \
  /usr/share/bash-completion/completions/switchyard /usr/share/zsh/vendor-completions/_switchyard-server /usr/share/doc/switchyard/LICENSE; do
  [ -s "$root$file" ] || fail "$file is not there"
done
! find "$root/usr/include" "$root/usr/share" -ipath '*switchyard*' -name '*.h' 2>/dev/null | grep . || fail "headers are installed"
grep -q /etc/switchyard/server.yaml <<<"$(within dpkg-query -W -f='${Conffiles}' switchyard)" || fail "server.yaml is no conffile"

# As systemd would: the service's user, its folders, its command.
command=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/switchyard.service")
for dir in /var/lib/switchyard /var/cache/switchyard; do within install -d -o switchyard -g switchyard "$dir"; done
: >"$work/server.log"
"${inside[@]}" setpriv --reuid switchyard --regid switchyard --clear-groups $command --port=0 --metrics-port=-1 >"$work/server.log" 2>&1 &
server=$!  # each of these programs becomes the next
for _ in $(seq 600); do
  grep -q ' gRPC on ' "$work/server.log" && break
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.1
done
address=$(sed -nE 's/.* gRPC on ([^ ,]*:[0-9]+).*/\1/p' "$work/server.log")
within switchyard status --server="$address" --wait=60 >"$work/status.log" 2>&1 || fail "the server is not ready"
within switchyard generate --server="$address" --text="In the beginning" --max_tokens=16 >"$work/answer.log" 2>&1 || fail "generate ended with $?"
[ "$(wc -w <"$work/answer.log")" -gt 3 ] || fail "no answer"
kill "$server"
wait "$server" || fail "the server ended with $?"
server=
seconds "served and stopped"

# The same as a service: what systemctl says is in the file result.
command -v systemd-nspawn >/dev/null || apt-get install -y --no-install-recommends systemd-container >/dev/null
within apt-get install -y --no-install-recommends systemd-sysv dbus procps >"$work/systemd.log" 2>&1 || fail "apt-get install systemd-sysv ended with $?"
cat >"$root/root/try.sh" <<'END'
#!/bin/sh
exec >/root/result 2>&1
pid() { systemctl show -P MainPID switchyard; }
check() { if "$@"; then echo "ok: $*"; else echo "NOT ok: $*"; fi; }
check systemctl start switchyard
check systemctl status --no-pager --lines=0 switchyard
# Ready is what `start` waited for.
check switchyard generate --text="In the beginning" --max_tokens=8
check systemctl reload switchyard
check switchyard generate --text="In the beginning" --max_tokens=8
first=$(pid)
check systemctl kill --kill-whom=main --signal=KILL switchyard
check timeout 60 sh -c "until systemctl is-active --quiet switchyard && [ \$(systemctl show -P MainPID switchyard) != $first ]; do sleep 0.2; done"
second=$(pid)
# Files of experts go where the unit lets them.
check systemctl set-environment SWITCHYARD_EXPERT_MEMORY=50%
check dpkg -i /root/switchyard.deb
check [ "$(pid)" != "$second" ]
check switchyard generate --text="In the beginning" --max_tokens=8
check [ -n "$(find /var/cache/switchyard -type f -size +1M)" ]
check systemctl stop switchyard
check [ "$(systemctl show -P Result switchyard)" = success ]
journalctl -u switchyard --no-pager
echo end
systemctl poweroff --force
END
chmod 755 "$root/root/try.sh"
printf '[Service]\nType=oneshot\nExecStart=/root/try.sh\n[Unit]\nAfter=multi-user.target\n' >"$root/etc/systemd/system/try.service"
within systemctl --quiet add-wants multi-user.target try.service
for dir in dev/shm dev proc; do umount "$root/$dir"; done
timeout 180 systemd-nspawn --quiet --boot --directory="$root" --private-network --register=no --keep-unit --console=pipe </dev/null >"$work/nspawn.log" 2>&1 || true
if [ ! -s "$root/root/result" ]; then
  echo "systemd does not boot in a container here: not tried as a service"
else
  cp "$root/root/result" "$work/result.log"
  grep -qx end "$work/result.log" && ! grep -q '^NOT ok' "$work/result.log" || { grep '^NOT ok' "$work/result.log"; fail "as a service"; }
  seconds "as a service"
fi
mount -t proc proc "$root/proc"

# Settings outlive an upgrade and a removal, not a purge.
echo '# mine' >>"$root/etc/switchyard/server.yaml"
within dpkg -i /root/switchyard.deb >"$work/upgrade.log" 2>&1 || fail "dpkg -i ended with $?"
within dpkg -r switchyard >>"$work/upgrade.log" 2>&1 || fail "dpkg -r ended with $?"
grep -q '# mine' "$root/etc/switchyard/server.yaml" || fail "an upgrade or a removal lost the settings"
within dpkg -P switchyard >>"$work/upgrade.log" 2>&1 || fail "dpkg -P ended with $?"
[ ! -e "$root/etc/switchyard" ] && [ ! -e "$root/usr/bin/switchyard-server" ] || fail "files are left after a purge"
seconds "upgraded, removed, purged"
