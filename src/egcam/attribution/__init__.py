"""From a model and images to maps: estimators of the gradient, weightings, and the methods made of them.

A call is a straight line: `explainer` resolves what is asked once for a model, into a `task`; a family's module runs it
(`cam`, `slope_cam`, `saliency`, `perturbation`, `occlusion`, …); `explanation` holds the result. References and
paths, estimators and weightings are pieces that any gradient CAM is made of. A method registers itself where it is
defined, and is known by lying in this folder.

May use models, targets and drawing; metrics, evaluation and all below use it.
"""

import pkgutil
from importlib import import_module

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
