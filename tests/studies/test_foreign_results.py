"""Somebody else's results: what takes far too much memory, or is not as egcam writes it, is refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from egcam.cli import app
from egcam.errors import EgcamError
from egcam.studies import parquet
from egcam.studies.report import write_report
from egcam.studies.report.view import gather
from egcam.studies.results import Results
from egcam.studies.runner import run_study
from egcam.studies.store import Store, StoreError
from support.tiny_study import STUDY, InProcess, write_study

SMALL = STUDY.replace(', "sufficiency", "max-sensitivity"', "")
SMALL = SMALL.replace("[metric.max-sensitivity]\nsamples = 2\n", "").replace('source = "data"', 'source = "mixed"')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    run_study(write_study(folder, 2, SMALL), folder / "out", engine=InProcess())
    return folder / "out"


def forged(whole: Path, folder: Path, change: Any, **writing: Any) -> Path:
    """A copy of the results with other rows in a part of the right name and checksum."""
    from pyarrow import BufferOutputStream, Table
    from pyarrow import parquet as files

    (folder / "parts").mkdir(parents=True)
    (folder / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    for part in (whole / "parts").glob("*.parquet"):
        table = files.read_table(part)
        rows = table.to_pylist()
        schema = change(rows, table.schema) or table.schema
        sink = BufferOutputStream()
        told = {"use_dictionary": list(parquet._TEXTS), "compression": "zstd", **writing}
        files.write_table(Table.from_pylist(rows, schema), sink, **told)
        data = bytes(sink.getvalue())
        (folder / "parts" / parquet.part_name(data)).write_bytes(data)
    return folder


def units(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["metric"] is None]


def with_values_as_texts(rows: Any, schema: Any) -> Any:
    import pyarrow as pa

    for row in rows:
        row["value"] = None if row["value"] is None else "a text"
    return schema.set(schema.get_field_index("value"), pa.field("value", pa.string()))


def with_a_shape_that_does_not_fit(rows: Any, schema: Any) -> None:
    for row in units(rows):
        row["shape"] = [3, 3]


def with_a_huge_map(rows: Any, schema: Any) -> None:
    for row in units(rows):
        row["shape"], row["map"] = [5000, 5000], bytes(4 * 5000 * 5000)


def with_no_image(rows: Any, schema: Any) -> None:
    units(rows)[0]["image"] = None


def with_no_target(rows: Any, schema: Any) -> None:
    units(rows)[0]["target"] = None


def with_a_score_before_its_unit(rows: Any, schema: Any) -> None:
    rows[0], rows[1] = rows[1], rows[0]


def with_an_endless_curve(rows: Any, schema: Any) -> None:
    for row in rows:
        row["curve"] = [0.0] * 200_000 if row["metric"] == "insertion" else row["curve"]


def with_empty_curves(rows: Any, schema: Any) -> None:
    for row in rows:
        row["curve"] = [] if row["metric"] == "insertion" else row["curve"]


def with_a_large_picture(rows: Any, schema: Any) -> None:
    file = BytesIO()
    Image.new("L", (9000, 9000)).save(file, "PNG")
    for row in units(rows):
        row["picture"] = file.getvalue() if row["picture"] is not None else None


def without_values(rows: Any, schema: Any) -> Any:
    for row in rows:
        del row["value"]
    return schema.remove(schema.get_field_index("value"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_values_as_texts, r"is not as egcam writes parts \(.*a text"),
        (without_values, r"is not as egcam writes parts"),
        (with_a_shape_that_does_not_fit, r"a map in the results says that it is \[3, 3\], and has 256 bytes"),
        (with_a_huge_map, r"is not as egcam writes parts \([\d,]+ bytes unpack to [\d,]+\)"),
        (with_no_image, r"is not as egcam writes parts \(a row has no image\)"),
        (with_no_target, r"is not as egcam writes parts \(a unit has no target\)"),
        (with_a_score_before_its_unit, r"is not as egcam writes parts \(a score stands before its unit\)"),
        (with_an_endless_curve, r"a curve in the results has 200,000 points"),
        (with_a_large_picture, r"the picture of image \d is too large: 9000 x 9000 pixels"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_report_on_forged_parts_ends_in_a_sentence(whole: Path, tmp_path: Path, change: Any, said: str) -> None:
    folder = forged(whole, tmp_path / "out", change)
    with pytest.raises(EgcamError, match=said):
        write_report(folder, tmp_path / "report")


def test_a_map_that_stands_in_a_dictionary_is_not_unpacked_for_each_row(whole: Path, tmp_path: Path) -> None:
    folder = forged(whole, tmp_path / "out", lambda rows, schema: None, use_dictionary=True)
    with pytest.raises(StoreError, match=r"the column (map|picture) is a dictionary"):
        Store(folder).outcomes()


def test_what_is_no_parquet_is_no_part(whole: Path, tmp_path: Path) -> None:
    folder = forged(whole, tmp_path / "out", lambda rows, schema: None)
    (folder / "parts" / parquet.part_name(b"rubbish")).write_bytes(b"rubbish")
    with pytest.raises(StoreError, match="is not as egcam writes parts"):
        Store(folder).outcomes()


def test_curves_without_a_point_are_left_out(whole: Path, tmp_path: Path) -> None:
    folder = forged(whole, tmp_path / "out", with_empty_curves)
    assert not gather(Results.of(folder)).sections[0].curves.keys() & {"insertion"}
    assert gather(Results.of(whole)).sections[0].curves.keys() == {"insertion", "deletion"}


def test_a_long_cause_is_cut(whole: Path, tmp_path: Path) -> None:
    def change(rows: Any, schema: Any) -> None:
        units(rows)[0]["cause"] = "x" * 5_000_000

    results = Results.of(forged(whole, tmp_path / "out", change))
    assert results.failures[0].cause == "x" * 10_000 + "…"
    # As many as there are parts, which is a matter of time.
    assert {failure.cause for failure in results.failures} == {"x" * 10_000 + "…"}


def test_a_manifest_of_no_study_ends_in_a_sentence(whole: Path, tmp_path: Path) -> None:
    folder = forged(whole, tmp_path / "out", lambda rows, schema: None)
    manifest = Store(folder).manifest
    other = replace(manifest, study={**manifest.study, "metrics": 7})
    (folder / "manifest.json").write_text(other.to_json())
    ended = CliRunner().invoke(app, ["study", "status", str(folder)])
    assert ended.exit_code == 2
    assert "is of no study that this egcam knows" in ended.stderr
    (folder / "manifest.json").write_text("[" * 100_000)
    ended = CliRunner().invoke(app, ["study", "status", str(folder)])
    assert ended.exit_code == 2
    assert "manifest.json is damaged" in ended.stderr


def test_untouched_copies_are_read(whole: Path, tmp_path: Path) -> None:
    copy = forged(whole, tmp_path / "out", lambda rows, schema: None)
    assert [one.scores for one in Store(copy).outcomes()] == [one.scores for one in Store(whole).outcomes()]
    for model in ("a", "b"):
        ours, theirs = Store(whole).maps(model), Store(copy).maps(model)
        assert sorted(ours) == sorted(theirs) == ["expected", "grad-cam", "layer-cam"]
        for method in ours:
            np.testing.assert_equal(ours[method], theirs[method])
