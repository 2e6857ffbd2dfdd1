"""Studies: models x data x methods x metrics over many images, resumable, on one machine or a cluster.

from egcam import studies
results = studies.run_study("study.toml", "results/")
print(results.tables["vgg16"].to_markdown())
studies.write_report("results/", "report/")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egcam.studies.config import StudyError, load_study, read_study
    from egcam.studies.cost import Estimate, estimate
    from egcam.studies.datasets import Dataset, Picture, register_dataset, unregister_dataset
    from egcam.studies.engines import register_engine, unregister_engine
    from egcam.studies.preset_files import preset, presets
    from egcam.studies.progress import Status, status
    from egcam.studies.report.report import write_report
    from egcam.studies.results import Results
    from egcam.studies.runner import Watcher, run_study
    from egcam.studies.specs import Study
    from egcam.studies.store import Store

_WHERE = {
    "Dataset": "datasets",
    "Estimate": "cost",
    "Picture": "datasets",
    "Results": "results",
    "Status": "progress",
    "Store": "store",
    "Study": "specs",
    "StudyError": "config",
    "Watcher": "runner",
    "estimate": "cost",
    "load_study": "config",
    "preset": "preset_files",
    "presets": "preset_files",
    "read_study": "config",
    "register_dataset": "datasets",
    "register_engine": "engines",
    "run_study": "runner",
    "status": "progress",
    "unregister_dataset": "datasets",
    "unregister_engine": "engines",
    "write_report": "report.report",
}
__all__ = [
    "Dataset",
    "Estimate",
    "Picture",
    "Results",
    "Status",
    "Store",
    "Study",
    "StudyError",
    "Watcher",
    "estimate",
    "load_study",
    "preset",
    "presets",
    "read_study",
    "register_dataset",
    "register_engine",
    "run_study",
    "status",
    "unregister_dataset",
    "unregister_engine",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is: a worker needs little of it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'egcam.studies' has no attribute {name!r}")
    return getattr(import_module(f"egcam.studies.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
