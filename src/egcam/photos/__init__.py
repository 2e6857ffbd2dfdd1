"""Photographs: read from files, explained, compared, shown."""
