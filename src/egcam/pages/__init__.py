"""Pages and tables as text: templates that escape whatever they are given, and one stylesheet for every page."""

from egcam.pages.rendering import part, render
from egcam.pages.tables import Cell, Column, TextTable

__all__ = ["Cell", "Column", "TextTable", "part", "render"]
