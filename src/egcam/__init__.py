"""egcam."""
