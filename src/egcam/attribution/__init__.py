"""From a model and images to maps: estimators of the gradient, weightings, and the methods made of them.

A method registers itself where it is defined, and is known by lying in this folder.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
