"""Heat maps as pictures: one palette, one way to lay a map over a photograph."""
