"""`egcam metrics`: what the quality of maps is measured with."""

from __future__ import annotations

from egcam.cli import options as opt
from egcam.cli.console import out, print_json, table


def metrics(as_json: opt.Json = False) -> None:
    """List the quality metrics: their group, which way is better, and what each measures."""
    from egcam.metrics.registry import records

    rows = [
        {
            "name": one.name,
            "group": one.group,
            "better": one.direction,
            "meaning": one.meaning,
            "needs": list(one.needs),
        }
        for one in sorted(records(), key=lambda one: one.group)
    ]
    if as_json:
        print_json({"metrics": rows})
        return
    cells = [[str(row[key]) for key in ("name", "group", "better", "meaning")] for row in rows]
    out().print(table(("metric", "group", "better", "what it measures"), cells, whole={"metric"}))
