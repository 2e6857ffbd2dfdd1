"""Studies: models x data x methods x metrics over many images, resumable, on one machine or a cluster.

from egcam import studies
results = studies.run_study("study.toml", "results/")
print(results.tables["vgg16"].to_markdown())
studies.write_report("results/", "report/")

`specs`, `config` and `presets` say what a study is; `datasets` opens its images; `plan` lists its units, `worker` does
one, `engines` say where; `store` keeps them through any interruption; `results` and `report` read them.

May use all above it: networks by name, methods, metrics, evaluation, figures, pages. The command runs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egcam.studies.config import StudyError as StudyError
    from egcam.studies.config import load_study as load_study
    from egcam.studies.config import read_study as read_study
    from egcam.studies.cost import Estimate as Estimate
    from egcam.studies.cost import estimate as estimate
    from egcam.studies.datasets import Dataset as Dataset
    from egcam.studies.datasets import Picture as Picture
    from egcam.studies.datasets import register_dataset as register_dataset
    from egcam.studies.datasets import unregister_dataset as unregister_dataset
    from egcam.studies.engines import register_engine as register_engine
    from egcam.studies.engines import unregister_engine as unregister_engine
    from egcam.studies.preset_files import preset as preset
    from egcam.studies.preset_files import presets as presets
    from egcam.studies.progress import Status as Status
    from egcam.studies.progress import status as status
    from egcam.studies.report.report import write_report as write_report
    from egcam.studies.results import Results as Results
    from egcam.studies.runner import Watcher as Watcher
    from egcam.studies.runner import run_study as run_study
    from egcam.studies.specs import Study as Study
    from egcam.studies.store import Store as Store

# What is loaded when it is first asked for, by the module it is in: a worker needs little of it.
_LATER = {
    "config": "StudyError load_study read_study",
    "cost": "Estimate estimate",
    "datasets": "Dataset Picture register_dataset unregister_dataset",
    "engines": "register_engine unregister_engine",
    "preset_files": "preset presets",
    "progress": "Status status",
    "report.report": "write_report",
    "results": "Results",
    "runner": "Watcher run_study",
    "specs": "Study",
    "store": "Store",
}
_MODULES = {name: module for module, names in _LATER.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Load what is asked for the first time."""
    if name not in _MODULES:
        raise AttributeError(f"module 'egcam.studies' has no attribute {name!r}")
    return getattr(import_module(f"egcam.studies.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
