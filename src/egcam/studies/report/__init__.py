"""The report of a study: tables, intervals, figures and an interpretation made by rule.

`view` gathers what there is to say, `interpretation` says it, `figures` and `tables` show it, and `report` puts it on
pages and writes the files. Reads results; computes no map and runs no network.
"""

from egcam.studies.report.report import write_report

__all__ = ["write_report"]
