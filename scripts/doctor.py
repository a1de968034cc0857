"""Is everything there that a run needs? Looks, and says what to do about what is not.

    python scripts/doctor.py                    the environment, the data, the disk
    mpiexec -n 4 python scripts/doctor.py       the ranks and the links between them too, started as the run will be
    torchrun --nproc-per-node 4 scripts/doctor.py       the same without MPI

Exit status 0: a run can start. 1: something must be mended first. Needs no package but to say that it is missing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import _project
from link_speed import measure
from oktopk.launchers import MEETING_POINT, rendezvous_is_known
from oktopk_training.errors import UserError
from oktopk_training.job import program
from oktopk_training.versions import OLDEST_PYTHON, dotted, numbers
from surroundings import MANIFESTS, attempt_import, by_host, launched, look_around, meet, name_of, requirements

MPI_FAMILIES = {  # by what a library says of itself, and by what a launcher does
    "Open MPI": ("Open MPI", "OpenRTE", "PRRTE"),
    "Intel MPI": ("Intel(R) MPI",),
    "Cray MPICH": ("CRAY MPICH", "PALS"),
    "MPICH": ("MPICH", "HYDRA"),
}
LAUNCHERS = ("mpiexec", "mpirun", "srun")
SLOW_LINK = 0.5e9  # bytes a second; a fast network has 10 and more, shared memory a few
LITTLE_SPACE = 2e9  # bytes: a few checkpoints
OK, NOTE, FAULT = "ok", "note", "FAULT"
TRANSPORTS = ("auto", "mpi", "torch")
TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node"
REBUILD_MPI4PY = "python -m pip install --force-reinstall --no-cache-dir --no-binary=mpi4py mpi4py"


@dataclass(frozen=True)
class Finding:
    topic: str
    state: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Job:
    """What was started with this process: `by_torch` if torch.distributed is to carry it, without MPI."""

    by_torch: bool
    mpi: object  # mpi4py.MPI, or None and the next says why
    mpi_fault: str | None
    ranks: object  # None where they cannot reach each other, or there is no torch; `fault` says why
    communicator: object
    fault: str | None

    @property
    def transport(self):
        return name_of(self.communicator) if self.communicator else None

    def everyones(self, value):
        return self.ranks.everyones(value) if self.ranks else [value]

    def spares_mpi(self, ranks):
        """Torch takes MPI's place where it carries these ranks, or could: MPI's launcher has started none."""
        has_gloo = all("gloo" in rank["backends"] for rank in ranks)
        return self.by_torch or (has_gloo and (launched() or (None, 1, 0))[1] == 1)


def find_job(transport):
    by_torch = transport == "torch" or (transport == "auto" and rendezvous_is_known())
    mpi, mpi_fault = attempt_import("mpi4py" if by_torch else "mpi4py.MPI")  # the latter starts MPI
    mpi = None if by_torch else mpi
    return Job(by_torch, mpi, mpi_fault, *meet(transport, mpi))


def check_python(ranks):
    versions = sorted({rank["python"] for rank in ranks})
    if any(numbers(version) < OLDEST_PYTHON for version in versions):
        remedy = f"Python {dotted(OLDEST_PYTHON)} or newer is needed"
        return Finding("python", FAULT, f"{', '.join(versions)} at {sys.executable}", remedy)
    if len(versions) > 1:
        return Finding("python", FAULT, f"ranks run {', '.join(versions)}", "start all in one environment")
    return Finding("python", OK, f"{versions[0]} at {sys.executable}")


def check_packages(ranks, spared=()):
    """Those that are spared may be missing."""
    faults, count = [], 0
    for name, oldest in requirements():
        versions = {rank["packages"][name] for rank in ranks}
        if name in spared and None in versions:
            continue
        count += 1
        if None in versions:
            faults.append(f"{name} is missing" + (" on some hosts" if len(versions) > 1 else ""))
        elif any(numbers(version) < numbers(oldest) for version in versions):
            faults.append(f"{name} is older than {oldest}")
        elif len(versions) > 1:
            faults.append(f"{name} differs between hosts ({', '.join(sorted(versions))})")
    torch_faults = {rank["torch_fault"] for rank in ranks if rank["packages"]["torch"]} - {None}
    faults += [f"torch does not load: {fault}" for fault in sorted(torch_faults)]
    if faults:
        return Finding("packages", FAULT, "; ".join(faults), "python -m pip install -r requirements.txt")
    text = f"all {count} of requirements.txt" + (f" but {', '.join(spared)}" if count < len(requirements()) else "")
    return Finding("packages", OK, f"{text}; torch {metadata.version('torch')}")


def check_mpi(mpi, mpi_fault, by_torch=False, spared=False):
    if by_torch and not mpi_fault:
        return Finding("mpi", OK, "mpi4py is installed, and not loaded: torch.distributed takes its place")
    if not mpi and spared:
        remedy = f"{TORCHRUN} N LSTM/main_trainer.py starts N ranks; in a job script, transport=torch"
        return Finding("mpi", NOTE, f"no MPI; torchrun works (mpi4py does not load: {mpi_fault})", remedy)
    if not mpi:
        remedy = f"on a cluster MPICC='cc -shared' {REBUILD_MPI4PY}; elsewhere python -m pip install mpich mpi4py"
        return Finding("mpi", FAULT, f"mpi4py does not load: {mpi_fault}", remedy)
    library = mpi.Get_library_version().strip("\0 \n").splitlines()[0]
    library = f"{' '.join(library.split())}, MPI {'.'.join(map(str, mpi.Get_version()))}"
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        remedy = "set MPI4PY_RC_THREAD_LEVEL=serialized, or use an MPI built with threads"
        return Finding("mpi", FAULT, f"{library} lets only the main thread communicate", remedy)
    level = "multiple" if mpi.Query_thread() == mpi.THREAD_MULTIPLE else "serialized"
    return Finding("mpi", OK, f"{library}, threads: {level}")


def check_launcher(mpi, spared=False):
    if rendezvous_is_known():
        return Finding("launcher", OK, f"torchrun; ranks meet at {':'.join(map(os.environ.get, MEETING_POINT))}")
    beside = Path(sys.executable).parent
    paths = [shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") for name in LAUNCHERS]
    path = next(filter(None, paths), None)
    if not path:
        text = f"none of {', '.join(LAUNCHERS)} is on the PATH"
        if spared:
            return Finding("launcher", NOTE, f"{text}; torchrun works", f"{TORCHRUN} N PROGRAM starts N ranks")
        remedy = "load the MPI module or activate the environment that brings one; on one machine pip install mpich"
        return Finding("launcher", FAULT, text, remedy)
    theirs = family(version_of(path))
    ours = family(mpi.Get_library_version()) if mpi else None
    if ours and theirs and ours != theirs:
        remedy = f"use the launcher of {ours}, or build mpi4py against {theirs}: {REBUILD_MPI4PY}"
        return Finding("launcher", NOTE, f"{path} is of {theirs}, but mpi4py uses {ours}", remedy)
    return Finding("launcher", OK, path)


def family(text):
    return next((name for name, signs in MPI_FAMILIES.items() if any(sign in text for sign in signs)), None)


def version_of(launcher):
    try:
        done = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def check_transport(communicator, fault):
    """What the ranks of a run reach each other by, if they are started as these are."""
    if communicator is None:
        remedy = f"mend what is said above; or start ranks without MPI: {TORCHRUN} N PROGRAM"
        return Finding("transport", FAULT, f"there is none: {fault}", remedy)
    name = name_of(communicator)
    behind = communicator.versions()
    if name == "torch":
        backends = behind["torch.distributed"]  # cpu:gloo,cuda:nccl
        kinds = {each.partition(":")[2] for each in backends.split(",")}
        return Finding("transport", OK, f"torch: torch.distributed over {kinds.pop() if len(kinds) == 1 else backends}")
    if name == "mpi":
        library = " ".join(behind["mpi_library"].split())
        return Finding("transport", OK, f"mpi: mpi4py {behind['mpi4py']} over {library}")
    return Finding("transport", OK, f"{name}: one rank has nobody to reach")


def check_ranks(ranks, mpi):
    found = launched()
    size = ranks.size if ranks else 1
    if found and found[1] > 1 and not ranks:
        text = f"the launcher started {found[1]} ({found[0]})"
        return Finding("ranks", FAULT, text, "without a transport they never meet")
    if found and found[1] != size:
        variable, wanted, _ = found
        text = f"the launcher started {wanted} ranks ({variable}), but MPI counts {size}: "
        text += "each rank believes that it is alone" if size == 1 else "they do not all meet"
        remedy = f"mpi4py was built against another MPI than the launcher's: MPICC='cc -shared' {REBUILD_MPI4PY}"
        return Finding("ranks", FAULT, text, remedy)
    if size == 1:
        start = "mpiexec -n 2 python" if mpi else f"{TORCHRUN} 2"
        return Finding("ranks", OK, f"1; {start} scripts/doctor.py looks at the links too")
    return Finding("ranks", OK, f"{size}" + (f", as {found[0]} says" if found else ""))


def check_hosts(ranks):
    hosts = by_host(ranks)
    text = ", ".join(f"{host} ({len(local)})" for host, local in hosts.items())
    for host, local in hosts.items():
        cores = {core for rank in local for core in rank["cores"]}
        if len(cores) < len(local):
            remedy = "start fewer ranks, or bind each to cores of its own, for speed"
            return Finding("hosts", NOTE, f"{text}; {len(local)} ranks share {len(cores)} cores of {host}", remedy)
    return Finding("hosts", OK, text)


def check_devices(ranks, transport="mpi"):
    if all(rank["first_device"] is None for rank in ranks):
        return Finding("devices", OK, "none that torch can use: training runs on the CPU")
    if transport == "torch":
        direct, whose = all("nccl" in rank["backends"] for rank in ranks), "NCCL"
    else:
        direct, whose = os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1", "MPI"
    way = f"{whose} takes device memory" if direct else "exchanges go through host memory"
    for host, local in by_host(ranks).items():
        devices = {rank["first_device"] for rank in local}
        if None in devices or len(devices) < len(local):
            text = f"{len(local)} ranks of {host} have {len(devices - {None})} devices between them"
            remedy = (
                "start ranks through LSTM/rank_device.sh, as the job scripts do, and no more than there are devices"
            )
            return Finding("devices", NOTE, text, remedy)
    return Finding("devices", OK, f"one for each rank; {way}")


def check_data(ranks, data_dir):
    blind = sorted({rank["host"] for rank in ranks if len(rank["data"]) < len(MANIFESTS)})
    if len(blind) == len(by_host(ranks)):
        remedy = "python scripts/prepare_an4.py --synthetic makes one (on a login node), --data-dir names another place"
        return Finding("data", FAULT, f"there is no corpus in {data_dir}", remedy)
    if blind:
        return Finding(
            "data", FAULT, f"{', '.join(blind)} cannot see {data_dir}", "put the data on a shared file system"
        )
    manifests, fault = attempt_import("oktopk_training.tasks.speech.manifest")
    if not manifests:
        return Finding("data", NOTE, f"{data_dir} is there, but could not be read through: {fault}")
    try:
        sizes = [len(manifests.load_manifest(data_dir / name)) for name in MANIFESTS]
    except UserError as error:
        return Finding("data", FAULT, str(error), "python scripts/fix_manifest.py corrects moved paths")
    return Finding("data", OK, f"{data_dir}: {sizes[0]} + {sizes[1]} utterances, all readable")


def check_disk(runs):
    place = next(folder for folder in (runs, *runs.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        return Finding(
            "disk", FAULT, f"cannot write in {place}: {error.strerror}", "choose another place with --run-dir"
        )
    free = shutil.disk_usage(place).free
    text = f"{runs} can be written, {free / 1e9:.0f} GB free"
    return (
        Finding("disk", OK, text) if free > LITTLE_SPACE else Finding("disk", NOTE, text, "make room for checkpoints")
    )


def check_links(speed, transport="mpi"):
    text = (
        f"{speed.latency * 1e6:.1f} µs and {speed.bandwidth / 1e9:.2g} GB/s to the slowest partner of rank 0 "
        f"(rank {speed.partner}); the gradient of lstman4 is summed over all in {speed.allreduce * 1e3:.0f} ms"
    )
    if speed.bandwidth < SLOW_LINK:
        if transport == "torch":
            remedy = "Gloo and NCCL take the network that GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name: try another"
        else:
            remedy = "MPI may be on TCP: see that it was built for this network"
        return Finding("links", NOTE, text, f"{remedy}; if ranks share cores, start fewer")
    return Finding("links", OK, text)


def speed_of_links(job):
    """On rank 0; None on the others, and where there are no links. Torch carries what lies on devices there."""
    if job.communicator is None or job.communicator.size == 1:
        return None
    torch, _ = attempt_import("torch")
    device = "cpu"
    if job.transport == "torch" and torch.cuda.device_count():
        device = f"cuda:{job.ranks.local_rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    return measure(job.communicator, device)


def wrapped(text, lead):
    """Lines of text behind a lead; commands in it stay whole where they can."""
    return textwrap.wrap(text, 112, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False)


def table(findings):
    lines = []
    for finding in findings:
        lead = f"{finding.state:>5}  {finding.topic:10}"
        lines += wrapped(finding.text, lead)
        lines += wrapped(f"-> {finding.remedy}", " " * len(lead)) if finding.remedy else []
    faults = sum(finding.state == FAULT for finding in findings)
    lines.append(f"\n{faults} to mend before a run can start" if faults else "\nready to train")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=_project.AUDIO_DATA, metavar="FOLDER", help="of the corpus")
    parser.add_argument("--run-dir", type=Path, default=_project.ROOT / "runs", metavar="FOLDER", help="of the runs")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto", help="what the run will be given")
    return parser.parse_args()


def judge(job, facts, speed, data_dir, runs):
    spared = job.spares_mpi(facts)
    return [
        check_python(facts),
        check_packages(facts, ("mpi4py",) if spared else ()),
        check_mpi(job.mpi, job.mpi_fault, job.by_torch, spared),
        check_launcher(job.mpi, spared),
        check_transport(job.communicator, job.fault),
        check_ranks(job.ranks, job.mpi),
        check_hosts(facts),
        check_devices(facts, job.transport),
        check_data(facts, data_dir),
        check_disk(runs),
        *([check_links(speed, job.transport)] if speed else []),
    ]


@program
def main():
    options = parse_arguments()
    data_dir, runs = options.data_dir.resolve(), options.run_dir.resolve()
    own = look_around(data_dir)
    job = find_job(options.transport)
    facts = job.everyones(own)
    speed = speed_of_links(job)
    status = 0
    if not job.ranks or job.ranks.rank == 0:
        findings = judge(job, facts, speed, data_dir, runs)
        status = int(any(finding.state == FAULT for finding in findings))
        if not (launched() or (None, 1, 0))[2]:  # ranks that believe they are alone need not all say so
            print(table(findings), flush=True)
    sys.exit(job.everyones(status)[0])


if __name__ == "__main__":
    main()
