"""From a model and images to maps: estimators of the gradient, weightings, and the methods made of them."""

# The methods register themselves where they are defined.
from egcam.attribution import cam as cam
from egcam.attribution import perturbation as perturbation
from egcam.attribution import saliency as saliency
