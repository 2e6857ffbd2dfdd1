"""Where the units of a study are worked on: on this machine, or on a Ray cluster."""
