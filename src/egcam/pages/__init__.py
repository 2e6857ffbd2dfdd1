"""Pages and tables as text: templates that escape whatever they are given, and one stylesheet for every page.

`rendering` fills templates, `tables` writes a table as Markdown, LaTeX, HTML or for a terminal, `escaping` makes text
harmless. Uses nothing of egcam; evaluation, reports and the page write with it.
"""

from egcam.pages.rendering import part, render
from egcam.pages.tables import Cell, Column, TextTable

__all__ = ["Cell", "Column", "TextTable", "part", "render"]
