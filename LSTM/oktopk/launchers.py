"""What a launcher says about the ranks that it started. Needs no package, for others ask before they load any."""

import os

LAUNCHED_RANKS = {  # how many ranks a launcher says there are, and which of them this is
    "PMI_SIZE": "PMI_RANK",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PALS_SIZE": "PALS_RANKID",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",  # of what srun started; SLURM_NTASKS is the whole job's
}


def launched_ranks():
    """How many ranks the launcher says that it started; 1 without one."""
    said = (os.environ.get(name, "") for name in LAUNCHED_RANKS)
    return max((int(size) for size in said if size.isdigit()), default=1)


def ranks_that_are_not_seen(size):
    """A launcher that started N ranks of which each sees itself alone: the sentence that says so, or None."""
    launched = launched_ranks()
    if launched == 1 or size > 1:
        return None
    return (
        f"the launcher started {launched} ranks, but MPI sees only this one: mpi4py was built against another "
        'MPI than the launcher\'s; rebuild it with MPICC="cc -shared" pip install --no-binary=mpi4py mpi4py'
    )
