"""From a model and images to maps: estimators of the gradient, weightings, and the methods made of them."""

# The methods register themselves where they are defined.
from egcam.attribution import attention as attention
from egcam.attribution import cam as cam
from egcam.attribution import controls as controls
from egcam.attribution import eigen as eigen
from egcam.attribution import finer as finer
from egcam.attribution import full_grad as full_grad
from egcam.attribution import guided as guided
from egcam.attribution import lrp as lrp
from egcam.attribution import occlusion as occlusion
from egcam.attribution import perturbation as perturbation
from egcam.attribution import rise as rise
from egcam.attribution import saliency as saliency
from egcam.attribution import surrogates as surrogates
