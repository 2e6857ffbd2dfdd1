"""From a model and images to maps: estimators of the gradient, weightings, and the methods made of them."""
