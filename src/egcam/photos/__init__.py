"""Photographs: read from files, explained, compared, shown.

`files` opens them, `comparison` explains one by several methods, `objects` finds what detectors and segmenters see in
it, `figure_kinds` draws the figures of `egcam figure`, `demo` makes the demonstration.

May use methods, figures and networks by name. The command and the page use it.
"""
