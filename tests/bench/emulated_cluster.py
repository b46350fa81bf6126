"""A cluster on one machine: programs that each have a network namespace and a link of given bandwidth to one switch.

    with Cluster(num_hosts=4, bits_per_second=250e6) as cluster:
        processes = [cluster.start(host, ["program", cluster.address(host)]) for host in range(4)]

Every host has a veth to a bridge, shaped both ways by HTB with bursts of 64 KB at most (spec/papers.md, A5, a2), and an
address of its own; all share the file system.  Nothing leaves the namespaces that this module makes: call
enter_namespace() first, which starts the program again in a network namespace of its own (with user namespaces if it is
not root's).  The kernel takes everything back when the program ends.
"""
import os
import shutil
import subprocess
import sys

MARK = "SWITCHYARD_IN_NAMESPACE"
QUEUE = 64 << 20
NETWORK = "10.77.0."


def enter_namespace():
    """Returns in a new network namespace, in which this process is root.  Ends the program with a message if that
    cannot be had."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            sys.exit(f"{os.path.basename(sys.argv[0])}: no {tool}; install {package}")
    if os.environ.get(MARK) == str(os.getpid()):
        return
    unshare = ["unshare", "--net"] if os.getuid() == 0 else ["unshare", "--net", "--user", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {' '.join(unshare)} is refused here: run as root, or allow user namespaces")
    # unshare replaces itself by the program: the process id stays.
    os.environ[MARK] = str(os.getpid())
    os.execvp(unshare[0], [*unshare, sys.executable, "-B", *sys.argv])


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Cluster:
    def __init__(self, num_hosts, bits_per_second, burst=64 << 10):
        """burst: bytes that may go at once after a pause: few beside what a message or a layer sends, 64 KB at most."""
        if not 1 <= num_hosts <= 200:
            raise ValueError(f"num_hosts is {num_hosts}, must be from 1 to 200")
        if not 12 << 10 <= burst <= 64 << 10:
            raise ValueError(f"burst is {burst}, must be from 12288 to 65536")
        self.num_hosts = num_hosts
        self.burst = burst
        self.rate = f"{int(bits_per_second)}bit"
        self.holders = []

    def __enter__(self):
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "switch", "type", "bridge")
            _run("ip", "link", "set", "switch", "up")
            for host in range(self.num_hosts):
                self._add_host(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()
        # By name: with their namespace the kernel would take them, too, but some time later.
        for device in ("switch", *(f"port{host}" for host in range(len(self.holders)))):
            subprocess.run(["ip", "link", "del", device], capture_output=True)
        self.holders = []

    def _add_host(self, host):
        # What keeps the namespace until the cluster goes.  It says when it is in it.
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo here; exec sleep infinity"], stdout=subprocess.PIPE)
        self.holders.append(holder)
        holder.stdout.readline()
        _run("ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", f"port{host}", "master", "switch")
        _run("ip", "link", "set", f"port{host}", "up")
        for command in (["ip", "link", "set", "lo", "up"], ["ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0"],
                        ["ip", "link", "set", "eth0", "up"],
                        ["sysctl", "-qw",
                         # A burst after a pause is as fast as one without.
                         "net.ipv4.tcp_slow_start_after_idle=0",
                         # A message's end does not wait for its beginning to leave (seen as 20 ms of one rank's in a tenth of
                         # all exchanges), and nothing is sent twice because a shaped link is slow.
                         "net.ipv4.tcp_autocorking=0", "net.ipv4.tcp_early_retrans=0", "net.ipv4.tcp_recovery=0"],
                        # Links of such clusters are not slow-started, and nobody there waits 40 ms for a delayed
                        # acknowledgement, which is no time that scales.
                        ["ip", "route", "replace", f"{NETWORK}0/24", "dev", "eth0", "initcwnd", "512", "initrwnd", "512",
                         "quickack", "1", "rto_min", "2s"]):
            _run(*self._inside(host), *command)
        self._shape([], f"port{host}")
        self._shape(self._inside(host), "eth0")

    def _shape(self, prefix, device):
        # Packets as long as the burst stall HTB for tens of milliseconds; short ones are what the CPU has most work with.
        _run(*prefix, "ip", "link", "set", device, "mtu", "9000", "gso_max_size", str(max(9000, self.burst // 4)))
        _run(*prefix, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
        _run(*prefix, "tc", "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", self.rate,
             "ceil", self.rate, "burst", str(self.burst), "cburst", str(self.burst))
        # Nothing is dropped: a lost packet would wait for a timer that is not scaled.
        _run(*prefix, "tc", "qdisc", "add", "dev", device, "parent", "1:1", "bfifo", "limit", str(QUEUE))

    def _inside(self, host):
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net"]

    def address(self, host):
        return f"{NETWORK}{host + 1}"

    def start(self, host, command, **popen):
        return subprocess.Popen([*self._inside(host), *command], **popen)
