"""The commands, a module each. What they need is imported when they run: help stays quick."""
