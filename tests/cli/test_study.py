"""`egcam study`, as people use it."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from egcam.cli import app
from egcam.studies import read_study, unregister_engine
from egcam.studies.store import Store
from support.tiny_study import STUDY, write_study


def run(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study that was run by the command."""
    folder = tmp_path_factory.mktemp("study")
    file = write_study(folder, images=3)
    return file, folder / "results", run("run", file, "--out", folder / "results", "--workers", 1)


def test_new_prints_a_study_that_can_be_read():
    result = run("new", "--preset", "paper-stability", "--data", "here", "--images", 20)
    assert result.exit_code == 0
    study = read_study(result.stdout, "/somewhere")
    assert (study.name, study.data.path, study.data.images) == ("paper-stability", "/somewhere/here", 20)
    assert read_study(run("new").stdout).name == "own-images"
    wrong = run("new", "--preset", "paper-stabilty")
    assert wrong.exit_code == 2
    assert "did you mean 'paper-stability'" in wrong.stderr
    assert wrong.stdout == ""


def test_presets_are_listed():
    listed = json.loads(run("presets", "--json").stdout)["presets"]
    assert "paper-main" in [one["name"] for one in listed]
    assert "paper-main" in run("presets").stdout


def test_estimate_runs_real_units_and_keeps_nothing(done):
    file, *_ = done
    before = sorted(file.parent.iterdir())
    said = json.loads(run("estimate", file, "--json", "--workers", 2).stdout)
    assert said["units"] == 3 * 2 * 3
    assert said["seconds"] == pytest.approx(sum(said["worker_seconds"].values()) / 2)
    assert said["seconds"] == pytest.approx(sum(said["seconds_by_method"].values()) / 2)
    assert 0 < sum(said["seconds_by_metric"].values()) <= 2 * said["seconds"]
    assert said["failed"] == {}
    assert sorted(file.parent.iterdir()) == before
    told = run("estimate", file)
    assert "3 images, 18 units: about " in told.stdout
    assert "a: expected" in told.stderr


def test_run_prints_the_tables(done):
    _, folder, result = done
    assert result.exit_code == 0, result.stderr
    assert "grad-cam" in result.stdout
    assert "Ins ↑" in result.stdout
    assert f"18 of 18 units are in {folder}" in result.stderr
    assert len(Store(folder).done()) == 18


def test_running_again_does_nothing(done):
    file, folder, _ = done
    again = run("run", file, "--out", folder, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["left"] == 0


def test_status(done):
    _, folder, _ = done
    said = json.loads(run("status", folder, "--json").stdout)
    assert (said["done"], said["total"], said["failed"]) == (18, 18, 0)
    assert "18 of 18 units done" in run("status", folder).stdout
    missing = run("status", folder / "elsewhere")
    assert missing.exit_code == 2
    assert "there is no manifest.json" in missing.stderr


def test_report(done, tmp_path):
    _, folder, _ = done
    written = json.loads(run("report", folder, "--out", tmp_path / "report", "--json").stdout)["files"]
    names = {os.path.basename(file) for file in written}
    assert {"report.md", "report.tex", "report.html", "scores.csv", "summary.csv"} <= names
    assert all(os.path.getsize(file) for file in written)
    wrong = run("report", folder, "--baseline", "grad-cm")
    assert wrong.exit_code == 2
    assert "did you mean 'grad-cam'" in wrong.stderr


def test_failed_units_give_exit_code_1(tmp_path):
    file = write_study(tmp_path, images=3)
    (tmp_path / "photos" / "001.png").write_text("no image")
    result = run("run", file, "--out", tmp_path / "out", "--workers", 1)
    assert result.exit_code == 1
    assert "6 units failed" in result.stderr
    assert "001.png" in run("status", tmp_path / "out").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "rai"], "there is no engine 'rai'; did you mean 'ray'"),
        (["--engine", "spark"], "there is no engine 'spark'; known are 'local', 'ray'"),
        (["--engine", "local", "--address", "auto"], "takes no address"),
        (["--shard", "3/2"], "write i/n with i from 1 to n"),
    ],
)
def test_wrong_use(tmp_path, arguments, said):
    file = write_study(tmp_path, images=3)
    result = run("run", file, "--out", tmp_path / "out", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_engine_from_a_plugin(tmp_path):
    (tmp_path / "plugin.py").write_text(
        """
import egcam
from pathlib import Path

class Here:
    def __init__(self, workers, address):
        Path(__file__).with_name("asked").write_text(f"{workers} {address}")

    def outcomes(self, job, shards):
        work = job.open()
        for shard in shards:
            yield [work(unit) for unit in shard]

egcam.studies.register_engine("plugin-engine", Here)
"""
    )
    file = write_study(tmp_path, images=2, text=STUDY + '\n[run]\nplugins = ["plugin.py"]\n')
    out = tmp_path / "out"
    try:
        result = run("run", file, "--out", out, "--engine", "plugin-engine", "--workers", 3, "--address", "somewhere")
    finally:
        unregister_engine("plugin-engine")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "asked").read_text() == "3 somewhere"
    assert len(Store(out).done()) == 12


@pytest.mark.parametrize("before", [["run", "study.toml", "--out"], ["status"], ["report"]])
def test_results_that_would_be_gone_at_once_are_refused(tmp_path, monkeypatch, before):
    write_study(tmp_path, images=1)
    monkeypatch.chdir(tmp_path)
    result = run(*before, "memory://somewhere")
    assert result.exit_code == 2
    assert "memory://somewhere would be lost when this command ends" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 4), (errno.EDQUOT, 4), (errno.EACCES, 2)])
def test_a_full_disk_has_an_exit_code_of_its_own(tmp_path, monkeypatch, number, code):
    def fail(path, data):
        raise OSError(number, os.strerror(number))

    file = write_study(tmp_path, images=1)
    monkeypatch.setattr("egcam.studies.storage._write_through", fail)
    result = run("run", file, "--out", tmp_path / "out", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["exit_code"] == code


def test_storage_out_of_reach_has_an_exit_code_of_its_own():
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Lost(MemoryFileSystem):
        protocol = "lost"

        def cat_file(self, *arguments, **options):
            raise ConnectionResetError("reset by peer")

    fsspec.register_implementation("lost", Lost, clobber=True)
    result = run("status", "lost://results")
    assert result.exit_code == 5, result.stderr
    assert "reset by peer" in result.stderr


def test_a_wrong_study_file(tmp_path):
    file = write_study(tmp_path, text=STUDY.replace("[data]", "[dta]"))
    result = run("run", file, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "dta is not a known key; did you mean 'data'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "engine", "times"),
    [
        (signal.SIGTERM, "local", 1),
        (signal.SIGHUP, "local", 2),
        (signal.SIGTERM, "ray", 1),
        (signal.SIGINT, "local", 2),
    ],
)
def test_a_polite_kill_keeps_what_is_done(tmp_path, number, engine, times):
    if engine == "ray":
        pytest.importorskip("ray", reason="needs the package ray (extra 'ray')")
    # Passes nap, for long once something is saved, so that the study is not over before it is stopped.
    file, out = write_study(tmp_path, images=4), tmp_path / "out"
    model = tmp_path / "model.py"
    model.write_text(
        model.read_text()
        .replace(
            "def make",
            "class Nap(nn.Sigmoid):\n    def forward(self, x):\n"
            "        import pathlib, time\n"
            f"        saved = any(pathlib.Path({str(out)!r}).glob('parts/*.parquet'))\n"
            "        time.sleep(0.5 if saved else 0.01)\n        return super().forward(x)\n\ndef make",
        )
        .replace("nn.Sigmoid(), nn.MaxPool2d(2)", "Nap(), nn.MaxPool2d(2)")
    )
    command = [sys.executable, "-m", "egcam", "study", "run", str(file), "--out", str(out), "--workers", "1"]
    command += ["--engine", engine]
    # Tests that run under nohup would hand on that SIGHUP is ignored.
    heard = {"preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **heard)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not list(out.glob("parts/*.parquet")):
        time.sleep(0.1)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.2)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 130, stderr
    assert "run the same command to resume" in stderr
    kept = Store(out).done()
    assert 0 < len(kept) < 24


@pytest.mark.slow
def test_a_run_under_nohup_outlives_its_terminal(tmp_path):
    file, out = write_study(tmp_path, images=2), tmp_path / "out"
    command = [sys.executable, "-m", "egcam", "study", "run", str(file), "--out", str(out), "--workers", "1"]
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", ignoring, *command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (out / "parts").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr


def test_a_damaged_part_is_named_in_one_plain_line(done):
    _, folder, _ = done
    part = sorted((folder / "parts").glob("*.parquet"))[0]
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    try:
        result = run("status", folder)
    finally:
        part.write_bytes(whole)
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith(f"egcam: warning: {folder}/parts: damaged parts were left out")
    assert "StoreWarning" not in result.stderr
    assert ".py:" not in result.stderr


def test_names_are_whole_at_80_columns(done):
    from rich.console import Console

    from egcam.studies.progress import Progress, Status

    model, method = "efficientnet-lite0-at-block-10", "expected-grad-cam"
    found = Status("s", 1, 2, (Progress(model, method, 1, 200_000, 3, 9.0, 86_400.0),), (), (), ((model, 1, 200_000),))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(found.render())
    text = console.export_text()
    assert model in text
    assert method in text
    assert "1 d 0 h" in text
