"""What to explain beyond a class: a class against another, a box, a mask or pixel, a similarity, one of several heads.

Each is a small object for `target=`, on its own for all images or in a list with one for each. It reads the number to
explain from one image's part of the model's output, in each sample.
"""

from __future__ import annotations

from egcam.models.class_targets import Class as Class
from egcam.models.class_targets import Contrast as Contrast
from egcam.models.image_targets import ImageTarget as ImageTarget
from egcam.targets.boxes import Box as Box
from egcam.targets.heads import Head as Head
from egcam.targets.masks import Mask as Mask
from egcam.targets.masks import Pixel as Pixel
from egcam.targets.similarity import Similarity as Similarity
