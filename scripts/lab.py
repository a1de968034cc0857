"""A network on one machine: hosts joined by links of a given rate, and a command run across them.

    python scripts/lab.py --hosts 4 --rate 1gbit -- python scripts/bench_allreduce.py --compressors dense,oktopk
    python scripts/lab.py --hosts 2 --ranks-per-host 2 --torchrun -- python scripts/doctor.py

A host is a network namespace with a name and an address of its own, and one link to a switch, which lets the rate pass
each way and no more: after a pause 0.25 ms of it, or 8 kB, pass at once. Ranks are started as on a cluster: by MPICH's
mpiexec from the first host, or by a torchrun on each, which meet there. Ranks of one host share memory; between hosts
there is nothing but the links. At the end stderr has what each host's interface sent and received, headers included.
The exit status is the command's. Ctrl-C and SIGTERM are passed on to it, and it has half a minute to end.

All of it lives in namespaces of one process: when that ends, however it ends, the kernel takes down the rest.
"""

import _project  # noqa: F401 - puts LSTM on the path

if __name__ == "__main__":
    from oktopk_training.job import begin

    begin()

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oktopk.fields import COUNT, FLAG, PATH, Checked, Kind, option, up_to
from oktopk.starting import YIELD_VARIABLE, cores
from oktopk_training.command_line import Parser, add_options
from oktopk_training.errors import UserError
from oktopk_training.files import atomic_write, refuse_unwritable
from oktopk_training.job import program

ENTER = Path(__file__).with_name("enter_host.sh")
MOST_HOSTS = 250  # that the subnet has addresses for
SUBNET = "10.77.0"
UNITS = {"m": 1, "g": 1000}  # in Mbit/s
MOST_OF_A_LINK = 100_000
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([mg])bit")


def _is_rate(word):
    return _RATE.fullmatch(word) and 1 <= mbit(word) <= MOST_OF_A_LINK


def mbit(rate):
    """Mbit/s."""
    number, unit = _RATE.fullmatch(rate).groups()
    return float(number) * UNITS[unit]


RATE = Kind("a rate like 100mbit or 1gbit, from 1mbit to 100gbit", str, _is_rate, metavar="RATE")
# Of the bucket at either end of a link. More than a little at once after a pause would be faster than the link; with
# less, a link loses what it could have carried while busy cores let its timer wait.
BURST, LEAST_BURST = 2.5e-4, 8000  # seconds of the rate, and bytes
LARGEST_PACKET = 65536
LATENCY = "50ms"  # that a packet waits in it at most
MEETING_PORT = "29500"
SECONDS_TO_END = 30  # that a command has once it is told to: a run finishes its step, and saves it
TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OWN_NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000  # CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET
PR_SET_PDEATHSIG = 1
LINK = "eth0"  # what a host calls it
INSIDE = "LAB_LINK_RATE"  # a variable that tells ranks the rate; there is none outside
# MPICH and Gloo take the links, unless these say otherwise already.
BY_THE_LINKS = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "GLOO_SOCKET_IFNAME": LINK}


@dataclass(frozen=True)
class Network(Checked):
    hosts: int = option(2, up_to(MOST_HOSTS, COUNT), "how many there are")
    ranks_per_host: int = option(1, COUNT, "of the command")
    rate: str = option("1gbit", RATE, "of each host's link, each way")
    torchrun: bool = option(False, FLAG, "start the ranks by torchrun, not by mpiexec")
    json: Path | None = option(None, PATH, "write the bytes there too")

    @property
    def names(self):
        return [f"host{number}" for number in range(self.hosts)]


@program
def main():
    network, command = parse_arguments()
    starts = starts_by_torchrun(network, command) if network.torchrun else start_by_mpiexec(network, command)
    check_tools()
    inside = fork_into_own_namespaces()
    if inside:
        sys.exit(watch(inside))
    build(network)
    began = time.perf_counter()
    status = run(starts, network)
    report(network, time.perf_counter() - began)
    sys.exit(status)


def parse_arguments():
    """The network, and the words of the command."""
    parser = Parser(description=__doc__.splitlines()[0], usage="%(prog)s [options] -- COMMAND")
    add_options(parser, Network)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    network = Network(**vars(parser.parse_args(words[:end])))
    command = words[end + 1 :]
    if not command:
        raise UserError("there is no command: put it behind the options, after --")
    if not shutil.which(command[0]):
        raise UserError(f"{command[0]} is no program that can be started; put `python` before a script of it")
    if network.json:
        refuse_unwritable(network.json)
    return network, command


def check_tools():
    if os.geteuid() != 0:
        raise UserError("a lab makes network namespaces, which only root may: start it as root")
    if INSIDE in os.environ:
        raise UserError("this is a host of a lab, which can hold no other: start both side by side")
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            raise UserError(f"there is no {tool} here, which a lab is built with: install iproute2")


# ---- what runs on which host


def start_by_mpiexec(network, command):
    """[(host, words)]: mpiexec starts the ranks of the other hosts too."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=paths)
    if not mpiexec or b"HYDRA" not in subprocess.run([mpiexec, "--version"], capture_output=True).stdout:
        raise UserError("there is no mpiexec of MPICH here: pip install mpich, or choose --torchrun")
    if re.search(r"\s", f"{ENTER}{mpiexec}"):
        raise UserError(
            f"mpiexec reaches no other host if its path, or {ENTER}, has a space: choose --torchrun, or another folder"
        )
    hosts = ["-hosts", ",".join(network.names), "-launcher", "ssh", "-launcher-exec", str(ENTER)]
    ranks = ["-ppn", str(network.ranks_per_host), "-n", str(network.hosts * network.ranks_per_host)]
    return [(network.names[0], [mpiexec, *hosts, *ranks, *command])]


def starts_by_torchrun(network, command):
    """[(host, words)]: an agent on each, and they meet on the first."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    torchrun += ["--nnodes", str(network.hosts), "--nproc-per-node", str(network.ranks_per_host)]
    torchrun += ["--master-addr", network.names[0], "--master-port", MEETING_PORT]
    return [(name, [*torchrun, "--node-rank", str(rank), *command]) for rank, name in enumerate(network.names)]


# ---- outside


def fork_into_own_namespaces():
    """0 in a child that is the first process of its namespaces: with it ends all that was started in them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(OWN_NAMESPACES):
        reason = os.strerror(ctypes.get_errno())
        raise UserError(f"this root may make no namespaces ({reason}): start the lab where it has CAP_SYS_ADMIN")
    signal.pthread_sigmask(signal.SIG_BLOCK, TO_END)  # which wait until either process has its handlers
    child = os.fork()
    if not child:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in heard():  # or the kernel keeps them from the first process of a namespace
            signal.signal(number, lambda number, _: os._exit(status_of(-number)))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_END)
    return child


def heard():
    """What tells this to end, but what whoever started it has it ignore, as nohup does."""
    return [number for number in TO_END if signal.getsignal(number) != signal.SIG_IGN]


def watch(inside):
    """Pass on what tells this process to end; returns the exit status of the one inside."""
    told = []

    def pass_on(number, _):
        if number == signal.SIGALRM:
            sys.stderr.write(f"lab: the command goes on {SECONDS_TO_END} s after it was told to end, and is killed\n")
        told.append(number)
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(inside, number if number in TO_END else signal.SIGKILL)
        signal.alarm(SECONDS_TO_END)

    for number in (*heard(), signal.SIGALRM):
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TO_END)
    status = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    return status_of(-told[0] if told else status)


def status_of(code):
    """As a shell reports it: 128 and more where a signal ended the process."""
    return code if code >= 0 else 128 - code


# ---- inside


def build(network):
    """The switch is this namespace's own bridge."""
    tool("mount", "--make-rprivate", "/")
    tool("mount", "-t", "proc", "proc", "/proc")
    Path("/run/netns").mkdir(exist_ok=True)
    tool("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    tool("ip", "link", "add", "switch", "type", "bridge")
    tool("ip", "link", "set", "switch", "up")
    addresses = {name: f"{SUBNET}.{number + 1}" for number, name in enumerate(network.names)}
    for name, address in addresses.items():
        add_host(name, address, network.rate)
    lines = [f"{form}{address} {name}\n" for name, address in addresses.items() for form in ("", "::ffff:")]
    with tempfile.NamedTemporaryFile("w") as hosts:  # mounted over the machine's, it outlives its name
        hosts.write("".join(["127.0.0.1 localhost\n", *lines]))
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        tool("mount", "--bind", hosts.name, "/etc/hosts")
    if Path("/etc/resolv.conf").exists():  # no link leads to its servers: those who ask would wait
        tool("mount", "--bind", "/dev/null", "/etc/resolv.conf")


def add_host(name, address, rate):
    tool("ip", "netns", "add", name)
    tool("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", LINK, "netns", name)
    tool("ip", "link", "set", f"to-{name}", "master", "switch", "up")
    tool("ip", "-n", name, "address", "add", f"{address}/24", "dev", LINK)
    for interface in (LINK, "lo"):
        tool("ip", "-n", name, "link", "set", interface, "up")
    # What is larger than the bucket would be cut into frames there, too many for cores that have ranks to run.
    packets = ["gso_max_size", str(min(burst(rate) // 2, LARGEST_PACKET))]
    bucket = ["tbf", "rate", rate, "burst", str(burst(rate)), "latency", LATENCY]
    for there, interface in ((["-n", name], LINK), ([], f"to-{name}")):
        tool("ip", *there, "link", "set", interface, *packets)
        tool("tc", *there, "qdisc", "add", "dev", interface, "root", *bucket)


def burst(rate):
    """Bytes."""
    return max(LEAST_BURST, round(BURST * mbit(rate) * 1e6 / 8))


def tool(*words):
    """What it prints."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the lab cannot be built: `{shlex.join(words)}` says {done.stderr.strip()!r}")
    return done.stdout


def of_shared_cores(network):
    """Hosts share this machine's cores, of which their ranks know nothing."""
    ranks, here = network.hosts * network.ranks_per_host, len(cores())
    threads = {"OMP_NUM_THREADS": str(max(1, here // ranks))}
    return threads if ranks <= here else {**threads, YIELD_VARIABLE: "0"}


def run(starts, network):
    """The exit status of the commands: of the first that fails, and then all are ended."""
    for name, value in {**BY_THE_LINKS, **of_shared_cores(network), INSIDE: network.rate}.items():
        os.environ.setdefault(name, value)
    running = {}

    def end_all(number, _=None):
        for pid in running:  # not Popen's own way, which would take note here of ends that the loop below waits for
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in heard():
        signal.signal(number, end_all)
    for host, words in starts:
        process = subprocess.Popen([ENTER, host, shlex.join(words)], start_new_session=True)
        running[process.pid] = process
    status = 0
    while running:
        pid, ended = os.wait()  # orphans of the ranks come here too
        if running.pop(pid, None) and not status:
            status = status_of(os.waitstatus_to_exitcode(ended))
            if status:
                end_all(signal.SIGTERM)
    return status


def report(network, seconds):
    ranks = f"{network.ranks_per_host} rank{'s' * (network.ranks_per_host > 1)} each"
    several = "s" * (network.hosts > 1)
    lines = [f"{network.hosts} host{several}, {ranks}, links of {network.rate}, {seconds:.1f} s"]
    hosts = {name: {"sent": let_pass(LINK, "-n", name), "received": let_pass(f"to-{name}")} for name in network.names}
    total = sum(host["sent"] for host in hosts.values())
    lines += [f"{name:8}{host['sent']:>16,} bytes sent{host['received']:>16,} received" for name, host in hosts.items()]
    lines += [f"together{total:>16,} bytes sent"]
    sys.stderr.write("".join(f"lab: {line}\n" for line in lines))
    if network.json:
        with atomic_write(network.json) as file:
            json.dump({"rate": network.rate, "hosts": hosts, "sent": total, "seconds": seconds}, file, indent=1)


def rate_here():
    """Of this host's link; None outside of a lab."""
    return os.environ.get(INSIDE)


def sent_from_here():
    """Bytes that this host's link has carried away so far; None outside of a lab."""
    return let_pass(LINK) if rate_here() else None


def let_pass(interface, *where):
    """Bytes that the bucket has let pass there: those on a real wire.

    The interface itself counts packets of up to 64 KiB, which it leaves to be cut later, as if each had one header.
    """
    return json.loads(tool("tc", *where, "-s", "-j", "qdisc", "show", "dev", interface))[0]["bytes"]


if __name__ == "__main__":
    main()
