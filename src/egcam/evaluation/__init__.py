"""Methods x metrics on images: one table of scores, and what it says.

`evaluate` makes the maps and scores them; `score` and `table` hold the scores, image by image; `comparable` chooses the
images that methods are compared on; `stats`, `signs`, `ranking` and `controls` say what differences are worth;
`printing` writes it down.

May use methods, metrics and pages' tables. Figures, studies and the page build on its tables.
"""
