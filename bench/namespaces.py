"""Network namespaces with shaped links, for the ranks of a bench. Needs root, ip and tc."""

import os
import subprocess
import sys

MTU = 9000  # of 9014 bytes on the wire 8948 are TCP's: .99 of the rate, with small frames .96
BURST = "128kb"  # what the bucket holds: two of the largest packets that the kernel passes on in one piece
BURST_BYTES = 128 << 10
QUEUE = "10ms"  # longer ones are dropped, as by a switch


class CannotShape(SystemExit):
    pass


class Network:
    """Namespaces NAME-0, NAME-1... at 10.77.r.2, each joined to a router (NAME-hub0) by a link of rate_mbit each way. A context: gone at
    its end. CannotShape ends the bench, with the reason, for who does not catch it.

    rates: {rank: mbit}, for ranks whose link has another rate
    slow: {(a, b): mbit}: what two ranks say to each other goes by a link of its own, of that rate each way
    nodes, uplink_mbit: by rank 0 or 1: which of two routers it hangs on, which are joined by a link of that rate each way
    """

    def __init__(self, bench, ranks, rate_mbit, congestion, rates=None, slow=None, nodes=None, uplink_mbit=None):
        self.name = f"ropewalk-{bench}-{os.getpid()}"
        self.ranks, self.rate_mbit, self.congestion = ranks, rate_mbit, congestion
        self.rates, self.slow = rates or {}, slow or {}
        self.nodes, self.uplink_mbit = nodes or [0] * ranks, uplink_mbit
        self.made = []

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        hubs = [f"hub{node}" for node in sorted(set(self.nodes))]
        for hub in hubs:
            self.add(hub)
        for rank, node in enumerate(self.nodes):
            self.add(str(rank))
            rate = self.rates.get(rank, self.rate_mbit)
            self.join(str(rank), "eth0", f"10.77.{rank}.2", hubs[node], f"rank{rank}", f"10.77.{rank}.1", rate)
            self.ip(str(rank), "link", "set", "lo", "up")
            self.ip(str(rank), "route", "add", "default", "via", f"10.77.{rank}.1", "congctl", self.congestion)
        if len(hubs) > 1:
            self.join(hubs[0], "uplink", "10.78.0.1", hubs[1], "uplink", "10.78.0.2", self.uplink_mbit)
            for rank, node in enumerate(self.nodes):
                self.ip(hubs[1 - node], "route", "add", f"10.77.{rank}.0/24", "via", f"10.78.0.{node + 1}")
        for number, ((a, b), rate) in enumerate(sorted(self.slow.items())):
            self.join(str(a), f"slow{number}", f"10.79.{number}.1", str(b), f"slow{number}", f"10.79.{number}.2", rate)
            for here, there, gateway in ((a, b, 2), (b, a, 1)):
                self.ip(str(here), "route", "add", f"10.77.{there}.2/32", "via", f"10.79.{number}.{gateway}", "src", f"10.77.{here}.2",
                        "congctl", self.congestion)
        for hub in hubs:
            self.do("ip", "netns", "exec", f"{self.name}-{hub}", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def join(self, a, a_device, a_address, b, b_device, b_address, rate_mbit):
        self.ip(a, "link", "add", a_device, "mtu", str(MTU), "type", "veth", "peer", "name", b_device, "mtu", str(MTU), "netns",
                f"{self.name}-{b}")
        for where, device, address in ((a, a_device, a_address), (b, b_device, b_address)):
            self.ip(where, "addr", "add", f"{address}/24", "dev", device)
            self.ip(where, "link", "set", device, "up")
            # Both ends: each shapes what it sends.
            self.do("tc", "-n", f"{self.name}-{where}", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate_mbit}mbit", "burst",
                    BURST, "latency", QUEUE)

    def add(self, which):
        self.do("ip", "netns", "add", f"{self.name}-{which}")
        self.made.append(f"{self.name}-{which}")

    def ip(self, which, *command):
        self.do("ip", "-n", f"{self.name}-{which}", *command)

    @staticmethod
    def do(*command):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            said = done.stderr.strip()
        except OSError as error:
            done, said = None, str(error)
        if done is None or done.returncode != 0:
            raise CannotShape(
                f"error[BENCH06] the link cannot be shaped: {' '.join(command)}: {said}\n"
                "  why: namespaces and tc need root and iproute2   fix: run it as root, or with --link none, which measures nothing")

    def __exit__(self, *_):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def check_link(run_link, rate_mbit):
    """Prints what lone streams move, by the lines that run_link() returns, and stops where they are off by 5% (rate_mbit None: never)."""
    # The best of three: whoever else needs a core makes a stream slower, never faster.
    tries = [[line["received_gbit_per_s"] for line in run_link()] for _ in range(3)]
    rates = [max(of_rank) for of_rank in zip(*tries)]
    print("a lone stream to each rank, Gb/s: " + ", ".join(f"{rate:.3f}" for rate in rates))
    if rate_mbit is not None and any(abs(rate / (rate_mbit / 1000) - 1) > 0.05 for rate in rates):
        sys.exit(f"error[BENCH10] the link is no {rate_mbit / 1000} Gb/s link\n"
                 "  why: a lone stream is off by more than 5%   fix: let nothing else run on this machine")
    return rates
