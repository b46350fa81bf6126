"""A cluster on one machine: programs that each have a network namespace and a link of given bandwidth to one switch.

    with Cluster(num_hosts=4, bits_per_second=250e6) as cluster:
        processes = [cluster.start(host, ["program", cluster.address(host)]) for host in range(4)]

Every host has a veth to a bridge, shaped both ways by HTB with bursts of 64 KB at most (scheduler/PAPERS.md, "Emulated clusters"), and an
address of its own; all share the file system.  With Nodes, hosts are on machines: a bridge each, whose link to the switch
is shaped, too.  With classes, each shaped link shares its bandwidth between kinds of packets (TrafficClass).  Nothing leaves the namespaces that this module makes: call
enter_namespace() first, which starts the program again in a network namespace of its own (with user namespaces if it is
not root's).  The kernel takes everything back when the program ends.
"""
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

MARK = "SWITCHYARD_IN_NAMESPACE"
QUEUE = 64 << 20
NETWORK = "10.77.0."
PACKET = 9000
ACKNOWLEDGEMENT = 64  # bytes: shorter packets have no data


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


def _run(*command, **keywords):
    done = subprocess.run(command, capture_output=True, text=True, **keywords)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Nodes:
    hosts: int  # of each, in order
    bits_per_second: float  # of a node's link to the switch, each way


@dataclass(frozen=True)
class TrafficClass:
    """Packets that are marked `tos` share a link with the other classes by weight, wherever several have packets waiting."""

    tos: int
    weight: float


class Cluster:
    def __init__(self, num_hosts, bits_per_second, burst=64 << 10, nodes=None, classes=()):
        """burst: bytes that may go at once after a pause: few beside what a message or a layer sends, 64 KB at most.
        classes: of what is not marked the first is.  Acknowledgements neither wait nor take bandwidth, as on links that are no TCP's."""
        if not 1 <= num_hosts <= 200:
            raise ValueError(f"num_hosts is {num_hosts}, must be from 1 to 200")
        if not 12 << 10 <= burst <= 64 << 10:
            raise ValueError(f"burst is {burst}, must be from 12288 to 65536")
        self.num_hosts = num_hosts
        self.burst = burst
        self.rate = bits_per_second
        self.nodes = nodes
        self.classes = classes
        self.holders = []

    def __enter__(self):
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "switch", "type", "bridge")
            _run("ip", "link", "set", "switch", "up")
            for node in range(self._num_nodes()):
                self._add_node(node)
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
        for device in ("switch", *(f"port{host}" for host in range(len(self.holders))),
                       *(f"{kind}{node}" for node in range(self._num_nodes()) for kind in ("up", "node"))):
            subprocess.run(["ip", "link", "del", device], capture_output=True)
        self.holders = []

    def _num_nodes(self):
        return -(-self.num_hosts // self.nodes.hosts) if self.nodes else 0

    def _add_node(self, node):
        _run("ip", "link", "add", f"node{node}", "type", "bridge")
        _run("ip", "link", "add", f"up{node}", "type", "veth", "peer", "name", f"down{node}")
        for device, bridge in ((f"up{node}", f"node{node}"), (f"down{node}", "switch")):
            _run("ip", "link", "set", device, "master", bridge)
            self._shape([], device, self.nodes.bits_per_second)
        for device in (f"node{node}", f"up{node}", f"down{node}"):
            _run("ip", "link", "set", device, "up")

    def _add_host(self, host):
        # What keeps the namespace until the cluster goes.  It says when it is in it.
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo here; exec sleep infinity"], stdout=subprocess.PIPE)
        self.holders.append(holder)
        holder.stdout.readline()
        _run("ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        bridge = f"node{host // self.nodes.hosts}" if self.nodes else "switch"
        _run("ip", "link", "set", f"port{host}", "master", bridge)
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
            _run(*self.inside(host), *command)
        self._shape([], f"port{host}", self.rate)
        self._shape(self.inside(host), "eth0", self.rate)

    def _shape(self, prefix, device, bits_per_second):
        # Packets as long as the burst stall HTB for tens of milliseconds; short ones are what the CPU has most work with.
        _run(*prefix, "ip", "link", "set", device, "mtu", str(PACKET), "gso_max_size", str(max(PACKET, self.burst // 4)))
        rate, burst = f"{int(bits_per_second)}bit", f"burst {self.burst} cburst {self.burst}"
        lines = [f"qdisc add dev {device} root handle 1: htb default {10 if self.classes else 1}",
                 f"class add dev {device} parent 1: classid 1:1 htb rate {rate} ceil {rate} {burst}"]
        if self.classes:
            lines += self._classes(device, rate, burst)
        else:
            lines.append(self._queue(device, "1:1"))
        _run(*prefix, "tc", "-batch", "-", input="\n".join(lines) + "\n")

    @staticmethod
    def _queue(device, parent):
        # Nothing is dropped: a lost packet would wait for a timer that is not scaled.
        return f"qdisc add dev {device} parent {parent} bfifo limit {QUEUE}"

    def _classes(self, device, rate, burst):
        """Classes have nothing of their own (rate 8 kbit), so all is shared by their quanta, round by round."""
        least = min(each.weight for each in self.classes)
        lines = [f"class add dev {device} parent 1: classid 1:2 htb rate {rate} ceil {rate} {burst}", self._queue(device, "1:2"),
                 f"filter add dev {device} parent 1: protocol ip prio 1 u32 match u16 0 0x{0x10000 - ACKNOWLEDGEMENT:x} at 2 flowid 1:2"]
        for i, each in enumerate(self.classes):
            quantum = int((PACKET + 100) * each.weight / least)
            lines += [f"class add dev {device} parent 1:1 classid 1:{10 + i} htb rate 8kbit ceil {rate} quantum {quantum} {burst}",
                      self._queue(device, f"1:{10 + i}"),
                      f"filter add dev {device} parent 1: protocol ip prio {2 + i} u32 match ip tos 0x{each.tos:x} 0xfc flowid 1:{10 + i}"]
        return lines

    def inside(self, host):
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net"]

    def address(self, host):
        return f"{NETWORK}{host + 1}"

    def start(self, host, command, **popen):
        return subprocess.Popen([*self.inside(host), *command], **popen)

    def run(self, command_of):
        """Runs command_of(host) on every host to its end; the share of the CPU that was idle meanwhile."""
        before = _cpu_times()
        started = [self.start(host, command_of(host)) for host in range(self.num_hosts)]
        codes = [process.wait() for process in started]
        delta = [b - a for a, b in zip(before, _cpu_times())]
        if any(codes):
            raise RuntimeError(f"workers ended with {codes}")
        return (delta[3] + delta[4]) / max(1, sum(delta))


def _cpu_times():
    with open("/proc/stat") as file:
        return [int(number) for number in file.readline().split()[1:9]]
