"""Is everything there that a run needs? Looks, and says what to do about what is not.

    python scripts/doctor.py                    the environment, the data, the disk
    mpiexec -n 4 python scripts/doctor.py       the ranks and the links between them too, started as the run will be

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
from oktopk_training.errors import UserError
from oktopk_training.job import program
from oktopk_training.versions import OLDEST_PYTHON, dotted, numbers
from surroundings import MANIFESTS, attempt_import, by_host, launched, look_around, requirements

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
REBUILD_MPI4PY = "python -m pip install --force-reinstall --no-cache-dir --no-binary=mpi4py mpi4py"


@dataclass(frozen=True)
class Finding:
    topic: str
    state: str
    text: str
    remedy: str = ""


def check_python(ranks):
    versions = sorted({rank["python"] for rank in ranks})
    if any(numbers(version) < OLDEST_PYTHON for version in versions):
        remedy = f"Python {dotted(OLDEST_PYTHON)} or newer is needed"
        return Finding("python", FAULT, f"{', '.join(versions)} at {sys.executable}", remedy)
    if len(versions) > 1:
        return Finding("python", FAULT, f"ranks run {', '.join(versions)}", "start all in one environment")
    return Finding("python", OK, f"{versions[0]} at {sys.executable}")


def check_packages(ranks):
    faults = []
    for name, oldest in requirements():
        versions = {rank["packages"][name] for rank in ranks}
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
    return Finding("packages", OK, f"all {len(requirements())} of requirements.txt; torch {metadata.version('torch')}")


def check_mpi(mpi, mpi_fault):
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


def check_launcher(mpi):
    beside = Path(sys.executable).parent
    paths = [shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}") for name in LAUNCHERS]
    path = next(filter(None, paths), None)
    if not path:
        remedy = "load the MPI module or activate the environment that brings one; on one machine pip install mpich"
        return Finding("launcher", FAULT, f"none of {', '.join(LAUNCHERS)} is on the PATH", remedy)
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


def check_ranks(comm):
    found = launched()
    size = comm.size if comm else 1
    if found and found[1] > 1 and not comm:
        return Finding(
            "ranks", FAULT, f"the launcher started {found[1]} ({found[0]})", "without mpi4py they never meet"
        )
    if found and found[1] != size:
        variable, wanted, _ = found
        text = f"the launcher started {wanted} ranks ({variable}), but MPI counts {size}: "
        text += "each rank believes that it is alone" if size == 1 else "they do not all meet"
        remedy = f"mpi4py was built against another MPI than the launcher's: MPICC='cc -shared' {REBUILD_MPI4PY}"
        return Finding("ranks", FAULT, text, remedy)
    if size == 1:
        return Finding("ranks", OK, "1; mpiexec -n 2 python scripts/doctor.py looks at the links too")
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


def check_devices(ranks):
    if all(rank["first_device"] is None for rank in ranks):
        return Finding("devices", OK, "none that torch can use: training runs on the CPU")
    direct = os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    transport = "MPI takes device memory" if direct else "exchanges go through host memory"
    for host, local in by_host(ranks).items():
        devices = {rank["first_device"] for rank in local}
        if None in devices or len(devices) < len(local):
            text = f"{len(local)} ranks of {host} have {len(devices - {None})} devices between them"
            remedy = (
                "start ranks through LSTM/rank_device.sh, as the job scripts do, and no more than there are devices"
            )
            return Finding("devices", NOTE, text, remedy)
    return Finding("devices", OK, f"one for each rank; {transport}")


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


def check_links(speed):
    text = (
        f"{speed.latency * 1e6:.1f} µs and {speed.bandwidth / 1e9:.1f} GB/s to the slowest partner of rank 0 "
        f"(rank {speed.partner}); the gradient of lstman4 is summed over all in {speed.allreduce * 1e3:.0f} ms"
    )
    if speed.bandwidth < SLOW_LINK:
        remedy = "MPI may be on TCP: see that it was built for this network; if ranks share cores, start fewer"
        return Finding("links", NOTE, text, remedy)
    return Finding("links", OK, text)


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


@program
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=_project.AUDIO_DATA, metavar="FOLDER", help="of the corpus")
    parser.add_argument("--run-dir", type=Path, default=_project.ROOT / "runs", metavar="FOLDER", help="of the runs")
    options = parser.parse_args()
    data_dir, runs = options.data_dir.resolve(), options.run_dir.resolve()

    mpi, mpi_fault = attempt_import("mpi4py.MPI")
    comm = mpi.COMM_WORLD if mpi else None
    own = look_around(data_dir)
    ranks = comm.gather(own) if comm else [own]
    speed = measure(comm) if comm and comm.size > 1 else None
    status = 0
    if ranks:
        findings = [
            check_python(ranks),
            check_packages(ranks),
            check_mpi(mpi, mpi_fault),
            check_launcher(mpi),
            check_ranks(comm),
            check_hosts(ranks),
            check_devices(ranks),
            check_data(ranks, data_dir),
            check_disk(runs),
            *([check_links(speed)] if speed else []),
        ]
        status = int(any(finding.state == FAULT for finding in findings))
        if not (launched() or (None, 1, 0))[2]:  # ranks that believe they are alone need not all say so
            print(table(findings))
    sys.exit(comm.bcast(status) if comm else status)


if __name__ == "__main__":
    main()
