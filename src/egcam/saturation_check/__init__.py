"""Whether a network's output saturates between black and the image, and what its plain gradient is then worth.

`measure` makes the passes, `curves` reads a curve, `verdict` says what follows, `figures` draws. It knows models and
drawing; nothing else of egcam knows it but the command and the page.
"""
