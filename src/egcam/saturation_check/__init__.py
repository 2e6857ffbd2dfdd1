"""The saturation study: what a network says while an image comes up from black, and what its gradient is then worth."""
