"""Methods x metrics on images: one table of scores, and what it says."""
