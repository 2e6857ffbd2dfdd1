"""Run a model and look inside it: layers, targets, activations and gradients at a layer."""
