"""The house stays in order: what imports what, what stands on whose path, what is said once."""

import ast
import sys
from dataclasses import fields
from graphlib import TopologicalSorter

import pytest

from corpora import PROJECT, run_program
from oktopk import Settings

LSTM, SCRIPTS = PROJECT / "LSTM", PROJECT / "scripts"
LIBRARY = LSTM / "oktopk"
# From the ground up: no module imports one of a later line. Names of packages stand for all that is in them.
FLOORS = [
    "fields devices launchers places shares tensor_files gate memory lent",
    "watchdog",
    "starting",
    "entries",
    "kernels coding communicator report buffers early",
    "coding_kernels wire",
    "cpu_operations",
    "operations",
    "exchange agreement transports.alone transports.mpi transports.torch",
    "choosers transports",
    "algorithms checkpoints",
    "algorithms.topka algorithms.topksa algorithms.gtopk algorithms.oktopk",
    "registry",
    "reducer",
    "nodes",
    "auto",
    "averager",
    "optimizer pieces testing.gradients testing.laws testing.meeting",
    "hooks testing.bench",
    "testing",
    "testing.__main__",
    "",  # oktopk itself, which offers all of it
]
LATER_THAN_3_11 = {"annotationlib", "compression", "profiling"}  # of the standard library, up to 3.15
OF_ANYBODY = {
    *("board", "checkpoint", "checkpoints", "comm", "common", "compression", "config", "corpus", "data", "dataset"),
    *("datasets", "errors", "evaluate", "exchange", "files", "job", "kernels", "launch", "main", "merged", "model"),
    *("models", "optim", "options", "ranks", "reports", "run", "run_log", "sampler", "selection", "settings"),
    *("sparse", "speech", "tasks", "test", "tests", "text", "tools", "train", "trainer", "training", "utils", "world"),
}
LONGEST_FUNCTION = 40


def sources(*folders):
    return sorted(path for folder in folders for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def module_of(path, root):
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path, root): path for root in (LSTM, SCRIPTS) for path in sources(root)}


def imports_of(module):
    """Names of modules. A package counts only where something of its own __init__ is taken."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base


def graph():
    """Module -> those of ours that it imports."""
    return {module: {name for name in imports_of(module) if name in MODULES} - {module} for module in MODULES}


def test_no_module_imports_one_that_imports_it():
    list(TopologicalSorter(graph()).static_order())


def test_no_module_of_the_library_imports_upwards():
    floor = {f"oktopk.{name}": number for number, line in enumerate(FLOORS) for name in line.split()}
    floor["oktopk"] = len(FLOORS)
    for module, imported in graph().items():
        if module in floor:
            assert {name for name in imported if floor[name] > floor[module]} == set(), module
    assert floor.keys() == {module_of(path, LSTM) for path in sources(LIBRARY)}


def test_the_library_needs_torch_and_numpy_and_loads_the_rest_when_it_is_asked_for():
    optional = {
        "numba": {"oktopk.kernels", "oktopk.coding_kernels"},
        "llvmlite": {"oktopk.kernels"},
        "mpi4py": {"oktopk.transports.mpi", "oktopk.starting"},
    }
    for module in MODULES:
        for name in imports_of(module) if module.split(".")[0] == "oktopk" else ():
            top = name.split(".")[0]
            if top not in {"oktopk", "torch", "numpy", *sys.stdlib_module_names}:
                assert module in optional[top], f"{module} imports {name}"


def test_importing_the_library_loads_neither_mpi_nor_numba_nor_speech():
    code = (
        "import sys, time, torch; before = set(sys.modules); start = time.perf_counter()\n"
        "from oktopk import DistributedOptimizer, GradientAverager, Settings, compressors\n"
        "print(' '.join({name.split('.')[0] for name in sys.modules.keys() - before}))"
    )
    done = run_program(("-c", code), cwd=LSTM)
    assert done.returncode == 0, done.stderr
    assert {"mpi4py", "numba", "llvmlite", "soundfile", "librosa", "tensorboardX"} & set(done.stdout.split()) == set()


def test_no_module_hides_one_of_the_standard_library():
    for folder in (LSTM, SCRIPTS):
        tops = {path.stem if path.is_file() else path.name for path in folder.iterdir()}
        assert tops & (sys.stdlib_module_names | LATER_THAN_3_11) == set()


def test_no_module_of_the_program_has_a_name_that_somebodys_own_may_have():
    tops = {path.stem for path in LSTM.glob("*.py")} | {path.parent.name for path in LSTM.glob("*/__init__.py")}
    assert tops == {
        "allreducer", "distributed_optimizer", "dl_trainer", "main_trainer", "oktopk", "oktopk_training",
    }  # fmt: skip
    assert tops & OF_ANYBODY == set()


def test_the_hosts_excepthook_stays_its_own():
    for path in sources(LSTM, SCRIPTS):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            assert "excepthook" not in {getattr(target, "attr", "") for target in targets}, path


@pytest.mark.parametrize("each", fields(Settings), ids=lambda each: each.name)
def test_a_default_of_the_settings_stands_once(each):
    """Nobody else writes it behind the option's name; the contract's two densities are its own."""
    allowed = {("allreducer", "density"), ("distributed_optimizer", "density")}
    found = []
    for path in sources(LSTM, SCRIPTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args]
                pairs = list(
                    zip(arguments[len(arguments) - len(node.args.defaults) :], node.args.defaults, strict=True)
                )
                pairs += list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
                found += [
                    (path.stem, argument.arg)
                    for argument, default in pairs
                    if argument.arg == each.name and isinstance(default, ast.Constant) and default.value is not None
                ]
    assert set(found) - allowed == set()


def test_functions_fit_on_a_screen():
    """The contract's constructors, whose arguments take half of them, are the only ones that may not."""
    long = {}
    for path in sources(LSTM, SCRIPTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                long[path.stem, node.name] = node.end_lineno - node.lineno + 1
    assert long.keys() <= {("allreducer", "__init__"), ("distributed_optimizer", "DistributedOptimizer")}, long


def test_a_wheel_brings_the_library_and_nothing_else(tmp_path):
    """Its list of packages is written down: one that was forgotten would be missing from it."""
    (listed,) = [line for line in (PROJECT / "pyproject.toml").read_text().splitlines() if line.startswith("packages")]
    packages = set(ast.literal_eval(listed.partition("=")[2].strip()))
    assert packages == {module_of(path, LSTM) for path in LIBRARY.rglob("__init__.py")}
