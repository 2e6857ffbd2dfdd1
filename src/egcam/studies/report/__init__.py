"""The report of a study: tables, intervals, figures and an interpretation made by rule.

`view` gathers what there is to say, `interpretation` says it, `figures`, `tables` and `differences` show it,
`documents` puts it on pages, and `report` writes the files. Reads results; computes no map and runs no network.
"""

from egcam.studies.report.report import write_report

__all__ = ["write_report"]
