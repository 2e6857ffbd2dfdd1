"""What a release consists of agrees with itself: versions, addresses, Pythons, and what is in the packages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

import egcam

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
# A local link in Markdown or HTML.
RELATIVE = re.compile(r"\]\((?!https?://|#|mailto:)|src=\"(?!https?://)")


def yaml_of(path: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / path).read_text())


def test_the_version_is_the_same_everywhere():
    newest = re.search(r"^## (\S+) \((\S+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == egcam.__version__
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {egcam.__version__}\n" in citation
    assert newest[2] == "unreleased" or f"\ndate-released: {newest[2]}\n" in citation


def test_the_sites_addresses_are_the_projects():
    settings = dict(re.findall(r"^(\w+): (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert settings["site_url"] == PROJECT["urls"]["Documentation"]
    assert settings["repo_url"] == SOURCE
    assert all(address.startswith((SOURCE, settings["site_url"])) for address in PROJECT["urls"].values())


def test_ci_runs_every_python_that_is_promised():
    promised = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    matrix = yaml_of(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == promised == ["3.11", "3.12", "3.13", "3.14"]
    assert {one.partition("-")[0] for one in matrix["system"]} == {"ubuntu", "macos", "windows"}
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_windows_is_not_promised_while_studies_do_without_it():
    systems = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if one.startswith("Operating System")}
    assert systems == {"Linux", "MacOS"}


def test_ci_runs_the_lowest_versions():
    steps = yaml_of(".github/workflows/ci.yml")["jobs"]["lowest"]["steps"]
    assert steps[-1]["run"] == "bash .ci/lowest"
    # attention needs aten._safe_softmax, which torch 2.4 lacks; typer 0.12 breaks with the click that comes with it.
    assert {"torch>=2.5", "typer>=0.16"} <= set(PROJECT["dependencies"])


def test_publishing_takes_no_token_and_attests():
    publish = yaml_of(".github/workflows/release.yml")["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()
    assert any("attest-build-provenance" in step.get("uses", "") for step in publish["steps"])


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("w*.yml")))
def test_issue_forms_have_what_github_asks_for(file):
    form = yaml_of(f".github/ISSUE_TEMPLATE/{file}")
    assert {"name", "description", "body"} <= set(form)
    for field in form["body"]:
        assert {"type", "id", "attributes"} <= set(field)
        assert field["attributes"]["label"]


def test_links_become_addresses():
    pytest.importorskip("hatchling")
    absolute = runpy.run_path(str(ROOT / "hatch_build.py"))["with_absolute_links"]
    text = 'See [a](docs/a.md#b), ![p](p.jpg), <img alt="x" src="q.png">, [c](https://example.org), [d](#d).'
    assert absolute(text, "https://h/o/r") == (
        "See [a](https://h/o/r/blob/main/docs/a.md#b), ![p](https://h/o/r/raw/main/p.jpg), "
        '<img alt="x" src="https://h/o/r/raw/main/q.png">, [c](https://example.org), [d](#d).'
    )
    readme = (ROOT / "README.md").read_text()
    assert RELATIVE.search(readme)
    assert not RELATIVE.search(absolute(readme, SOURCE))


@pytest.mark.slow
def test_the_packages_hold_what_they_should(tmp_path):
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        described = message_from_bytes(packed.read(next(one for one in names if one.endswith("METADATA"))))
    for needed in ("web/page.css", "studies/presets/paper-main.toml", "pages/templates/web.html", "py.typed"):
        assert f"egcam/{needed}" in names
    assert not [one for one in names if one.startswith(("tests", "docs"))]
    assert described["Version"] == egcam.__version__
    assert not RELATIVE.search(str(described.get_payload()))
    assert f"Source, {SOURCE}" in described.get_all("Project-URL")
    with tarfile.open(sdist) as packed_source:
        files = {one.partition("/")[2] for one in packed_source.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "tests/test_release.py", "mkdocs.yml"} <= files
    assert not [one for one in files if one.startswith("docs/results") and one.endswith((".png", ".jpg"))]
