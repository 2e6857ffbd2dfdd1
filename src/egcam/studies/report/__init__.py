"""The report of a study: tables, intervals, figures and an interpretation made by rule."""

from egcam.studies.report.report import write_report

__all__ = ["write_report"]
