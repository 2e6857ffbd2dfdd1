"""egcam: heat maps for image classifiers that hold up inside the network.

import egcam
explanation = egcam.explain(model, images)      # SlopeCAM of the predicted class
explanation.overlay()[0].save("why.png")

Every name stands once, in `__init__.pyi`. torch takes seconds to import, and `egcam --help` and `import egcam` need not
wait for it: a name is imported when it is first asked for.
"""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import get_data
from typing import Any

from egcam._version import __version__ as __version__

_STUB = (get_data("egcam", "__init__.pyi") or b"").decode()
_MODULES = {name: module for module, name in re.findall(r"^from (egcam[.\w]*) import (\w+) as", _STUB, re.MULTILINE)}
_PACKAGES = ("attribution", "evaluation", "drawing", "models", "photos", "saturation_check")

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    """Load what is asked for the first time."""
    if name in _PACKAGES:
        return import_module(f"egcam.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'egcam' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    try:
        found: Any = vars(module)[name]
    except KeyError:
        found = import_module(f"{module.__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
