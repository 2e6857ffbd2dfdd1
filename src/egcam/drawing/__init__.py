"""Heat maps as pictures: one palette, one way to lay a map over a photograph.

`palette` gives colours to numbers, `overlays` lays maps over photographs and puts pictures side by side, `text_layout`
measures letters.

Uses arrays and Pillow, and nothing of egcam but errors and image operations. Explanations, figures, the page and the
command draw with it.
"""
