"""What is trained. A task is a module or package of this folder that has a `TASK`: a class made from `task.Task`.

It owns its data, its model, its loss, how it is judged, its defaults and its options; the trainer knows none of that.
To add one, put a file here. Its class

- says what it is called, where its data are and what sizes its model has (see the attributes of `Task`);
- reads the data and checks them when it is made, on every rank, which takes its own part;
- offers `build`, `batches`, `loss`, `validate` and `summarise` (see there).

Its name is then one of --dnn, its dataset one of --dataset, its defaults stand in --help.
"""

import importlib
import pkgutil

DEFAULT = "lstman4"  # where --dnn says nothing


def _find():
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.TASK.name: module.TASK for module in modules if hasattr(module, "TASK")}


TASKS = _find()
