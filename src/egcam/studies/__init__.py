"""Studies: models x data x methods x metrics over many images, resumable, on one machine or a cluster."""
