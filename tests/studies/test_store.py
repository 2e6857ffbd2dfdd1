"""The store keeps what it was given, bit for bit, whatever happens to the process, the disk or the files."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from itertools import count, pairwise
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egcam.studies.manifest import DataRecord, ModelRecord
from egcam.studies.records import Outcome, Unit, failed
from egcam.studies.store import Store, StoreError, StoreWarning
from support.store_children import write_until_killed, write_with_file_limit
from support.store_samples import METHODS, METRICS, UNITS, bits, sample_manifest, sample_outcome

pytestmark = pytest.mark.filterwarnings("error::egcam.studies.store.StoreWarning")

_names = count()
children = multiprocessing.get_context("forkserver")
children.set_forkserver_preload(["egcam.studies.store", "pyarrow.parquet", "pandas", "filelock", "pytest"])


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    """A folder of each kind, in which nothing is yet."""
    return str(tmp_path / "results") if request.param == "local" else f"memory://test-store-{next(_names)}"


@pytest.fixture
def store(folder):
    store = Store(folder)
    store.begin(sample_manifest())
    return store


@pytest.fixture
def local(tmp_path):
    store = Store(tmp_path / "results")
    store.begin(sample_manifest())
    return store


def part_files(store):
    return sorted(Path(store.folder, "parts").glob("*.parquet"))


class TestContract:
    def test_nothing_is_touched_before_begin(self, tmp_path):
        store = Store(tmp_path / "results")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(StoreError, match=r"there is no manifest\.json in .*results; 'egcam study run"):
            store.done()

    def test_manifest_comes_back(self, store):
        assert Store(store.folder).manifest == sample_manifest()

    def test_empty(self, store):
        store.write([])
        assert store.done() == set()
        assert store.outcomes() == []
        assert store.curves("vgg16", "insertion") == {}
        assert store.maps("vgg16", "cam") == {}
        assert store.pictures("vgg16") == {}
        assert not any(one.error for one in store.outcomes())
        assert store.damaged() == []

    def test_all_that_was_written_comes_back(self, store):
        written = {unit: sample_outcome(unit) for unit in UNITS}
        for start in range(0, len(UNITS), 5):
            store.write([written[unit] for unit in UNITS[start : start + 5]])
        again = Store(store.folder)
        assert again.done() == set(UNITS)
        assert [bits(one) for one in again.outcomes()] == [bits(written[unit]) for unit in UNITS]
        assert all(one.curves == {} and one.coarse is None and one.picture is None for one in again.outcomes())
        curves = again.curves("alexnet", "deletion")
        assert set(curves) == set(METHODS)
        for unit in (unit for unit in UNITS if unit.model == "alexnet"):
            wanted = written[unit]
            assert curves[unit.method][unit.image].tobytes() == wanted.curves["deletion"].tobytes()
            coarse = again.maps(unit.model, unit.method)[unit.method][unit.image]
            assert (coarse.shape, coarse.dtype) == ((3, 5), np.float32)
            assert coarse.tobytes() == wanted.coarse.tobytes()
        # An image's picture is kept with each of its units; the first method's is given.
        assert again.pictures("vgg16") == {n: written[Unit("vgg16", METHODS[0], n)].picture for n in range(4)}
        assert again.curves("vgg16", "sparseness") == {}
        assert again.curves("no such model", "deletion") == {}

    def test_odd_values_come_back_bit_for_bit(self, store):
        nan_with_payload = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]
        negative_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
        values = (nan, nan_with_payload, negative_nan, inf, -inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1)
        unit = Unit("模型 \u0000 é", "Grad‑CAM++ 🐕", 1)
        scores = tuple(
            unit.score(f"metric {n}", value, -value, None if n % 2 else f"cause {n}") for n, value in enumerate(values)
        )
        curve = np.array([0x7FC0BEEF, 0xFFC00001, 0x80000000, 0x7F800000, 1, 0], np.uint32).view(np.float32)
        odd = Outcome(
            unit,
            'a "quoted"\nname/…\\.jpg',
            -1,
            2**40,
            nan_with_payload,
            scores,
            error="",
            curves={"Σ": curve, "empty": np.empty(0, np.float32)},
            coarse=curve.reshape(2, 3),
            picture=b"\x00\xff" * 3,
        )
        none = Outcome(Unit("vgg16", "cam", 0), "a.jpg", 0, 0, 0.0, ())
        manifest = sample_manifest(
            study={"methods": [{"name": "cam"}, {"name": unit.method}]},
            data=DataRecord("", {"a.jpg": "a", odd.name: "b"}),
            models={**sample_manifest().models, unit.model: ModelRecord("", 0, "")},
            recipes={**sample_manifest().recipes, unit.model: {unit.method: "odd"}},
            settings={metric: metric for metric in (*(score.metric for score in scores), "Σ", "empty")},
        )
        store.begin(manifest)
        store.write([odd, none])
        assert [bits(one) for one in store.outcomes()] == [bits(none), bits(odd)]
        curves = store.curves(odd.unit.model, "Σ")
        assert curves[odd.unit.method][odd.unit.image].view(np.uint32).tolist() == curve.view(np.uint32).tolist()
        assert len(store.curves(odd.unit.model, "empty")[odd.unit.method][odd.unit.image]) == 0
        assert store.maps(*odd.unit[:2])[odd.unit.method][1].tobytes() == curve.tobytes()
        assert store.pictures(odd.unit.model) == {1: b"\x00\xff" * 3}

    def test_maps_that_are_not_contiguous(self, store):
        coarse = np.arange(12, dtype=np.float32).reshape(3, 4).T
        store.write([replace(sample_outcome(UNITS[0]), coarse=coarse)])
        assert store.maps("vgg16")[UNITS[0].method][0].tolist() == coarse.tolist()

    def test_a_name_that_is_no_text_does_not_lose_the_result(self, store):
        store.write([replace(sample_outcome(UNITS[0]), name=os.fsdecode(b"\xff.jpg")), sample_outcome(UNITS[1])])
        assert [one.name for one in store.outcomes()] == ["\\udcff.jpg", "photograph 0.jpg"]

    def test_a_unit_counts_once(self, store):
        first = sample_outcome(UNITS[0])
        store.write([first, sample_outcome(UNITS[1])])
        store.write([replace(first, target=first.target + 1), sample_outcome(UNITS[2])])
        assert [one.unit for one in store.outcomes()] == list(UNITS[:3])
        assert store.outcomes()[0].target == first.target

    def test_a_failure_gives_way_to_a_success(self, store):
        store.write([failed(UNITS[0], METRICS, "out of memory"), failed(UNITS[1], METRICS, "broken file")])
        assert store.done() == {UNITS[0], UNITS[1]}
        assert store.done(failed=False) == set()
        assert {one.unit: one.error for one in store.outcomes() if one.error} == {
            UNITS[0]: "out of memory",
            UNITS[1]: "broken file",
        }
        store.write([sample_outcome(UNITS[0])])
        assert store.done(failed=False) == {UNITS[0]}
        assert [one.error for one in store.outcomes()] == [None, "broken file"]
        found = store.outcomes()
        assert [one.error for one in found] == [None, "broken file"]
        assert [(score.metric, score.cause) for score in found[1].scores] == [(name, "broken file") for name in METRICS]

    def test_two_stores_write_side_by_side(self, store):
        other = Store(store.folder)
        for unit in UNITS[:6]:
            (store if unit.image % 2 else other).write([sample_outcome(unit)])
        assert store.done() == other.done() == set(UNITS[:6])

    def test_what_has_other_keys_does_not_count_and_is_kept(self, store):
        store.write([sample_outcome(UNITS[0]), sample_outcome(UNITS[1])])
        first = sample_manifest()
        recipes = {**first.recipes, "vgg16": {**first.recipes["vgg16"], METHODS[0]: "another recipe"}}
        images = {**first.data.images, "photograph 0.jpg": "another content"}
        other = Store(store.folder)
        other.begin(sample_manifest(recipes=recipes))
        assert other.done() == {UNITS[1]}
        other.begin(sample_manifest(data=DataRecord("", images)))
        assert other.done() == set()
        other.begin(sample_manifest(settings={**first.settings, "deletion": "another setting"}))
        assert other.done() == {UNITS[0], UNITS[1]}
        assert other.done(needs=METRICS) == set()
        assert {score.metric for one in other.outcomes() for score in one.scores} == {"insertion", "sparseness"}
        assert other.curves("vgg16", "deletion") == {}
        other.begin(first)
        assert [bits(one) for one in other.outcomes()] == [bits(sample_outcome(unit)) for unit in UNITS[:2]]

    def test_an_outcome_counts_for_what_it_was_really_made_from(self, store):
        """Its worker says so; where it does not, it counts for what was asked."""
        changed = replace(sample_outcome(UNITS[0]), content="replaced under way")
        assert not store.is_as_begun(changed)
        assert store.is_as_begun(sample_outcome(UNITS[0]))
        store.write([changed, replace(sample_outcome(UNITS[1]), recipe="another model"), sample_outcome(UNITS[2])])
        assert store.done() == {UNITS[2]}
        images = {**sample_manifest().data.images, "photograph 0.jpg": "replaced under way"}
        store.begin(sample_manifest(data=DataRecord("", images)))
        assert store.done() == {UNITS[0]}

    def test_images_are_known_by_content_whatever_their_number(self, store):
        store.write([sample_outcome(unit) for unit in UNITS])
        turned = dict(reversed(list(sample_manifest().data.images.items())))
        store.begin(sample_manifest(data=DataRecord("", turned)))
        assert store.done() == {unit._replace(image=len(turned) - 1 - unit.image) for unit in UNITS}

    def test_begin_again_keeps_what_is_there(self, store):
        store.write([sample_outcome(UNITS[0])])
        again = Store(store.folder)
        again.begin(sample_manifest(created="2030-01-01T00:00:00+00:00"))
        assert again.manifest.created == "2026-01-01T00:00:00+00:00"
        assert again.done() == {UNITS[0]}

    def test_versions(self, store):
        newer = {**sample_manifest().versions, "torch": "2.5.0"}
        with pytest.raises(StoreError, match=r"torch: 2\.4\.0 -> 2\.5\.0(.|\n)*mix_versions=True \(--mix-versions\)"):
            Store(store.folder).begin(sample_manifest(versions=newer))
        store.write([sample_outcome(UNITS[0])])
        mixed = Store(store.folder)
        mixed.begin(sample_manifest(versions=newer), mix_versions=True)
        mixed.write([sample_outcome(UNITS[1])])
        found = Store(store.folder)
        assert len(found.outcomes()) == 2
        assert found.manifest.versions["torch"] == "2.4.0"
        assert [one.versions["torch"] for one in found.manifest.further] == ["2.5.0"]
        # What was made with versions that nobody has accepted does not count, also where the manifest was lost.
        found._folder.remove("manifest.json")
        lost = Store(store.folder)
        lost.begin(sample_manifest(versions=newer))
        assert lost.done() == {UNITS[1]}
        lost.begin(sample_manifest(), mix_versions=True)
        assert lost.done() == {UNITS[0], UNITS[1]}
        found = Store(store.folder)
        # Both are known now, so neither need be accepted again.
        found.begin(sample_manifest())
        found.begin(sample_manifest(versions=newer))
        assert len(found.manifest.further) == 1

    def test_another_processor_is_warned_of_once(self, store):
        other = sample_manifest(versions={**sample_manifest().versions, "cpu": "two"})
        with pytest.warns(StoreWarning, match="results from one; those from two may differ in their last digits"):
            Store(store.folder).begin(other)
        Store(store.folder).begin(other)
        assert [one.versions["cpu"] for one in Store(store.folder).manifest.further] == ["two"]

    def test_a_file_egcam_did_not_name_is_left_out(self, store):
        store.write([sample_outcome(UNITS[0])])
        store._folder.write("parts/copy.parquet", b"anything")
        store._folder.write("parts/notes.txt", b"anything")
        with pytest.warns(StoreWarning, match=r"egcam did not give were left out: copy\.parquet"):
            assert store.done() == {UNITS[0]}

    @pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "longer"])
    def test_a_damaged_part_is_done_again(self, store, damage):
        store.write([sample_outcome(unit) for unit in UNITS[:3]])
        store.write([sample_outcome(unit) for unit in UNITS[3:5]])
        name = store._folder.names("parts")[0]
        data = bytearray(store._folder.read(f"parts/{name}"))
        # In the middle lie the curves: what is wrong there is not seen by reading the keys alone.
        data[len(data) // 2] ^= 1
        harmed = {"flipped": data, "truncated": data[: len(data) // 2], "empty": b"", "longer": data + b"x"}[damage]
        store._folder.write(f"parts/{name}", bytes(harmed))
        with pytest.warns(StoreWarning, match=f"damaged parts were left out.*{name}"):
            assert store.done() == set(UNITS[3:5])
        with pytest.warns(StoreWarning, match=name):
            assert [one.unit for one in store.outcomes()] == list(UNITS[3:5])
        assert store.damaged() == [name]
        assert store.set_damaged_aside() == [name]
        assert store._folder.names("parts/damaged") == [name]
        assert store.done() == set(UNITS[3:5])
        store.write([sample_outcome(unit) for unit in UNITS[:3]])
        assert [bits(one) for one in store.outcomes()] == [bits(sample_outcome(unit)) for unit in UNITS[:5]]


def test_lock(local):
    refused = pytest.raises(StoreError, match=rf"is in use by process {os.getpid()} on .*; wait for it, or use another")
    with local.lock((1, 2)), Store(local.folder).lock((2, 2)), refused:
        Store(local.folder).lock().__enter__()
    with local.lock():
        pass


@settings(max_examples=25, deadline=None)
@given(st.permutations(UNITS), st.lists(st.integers(1, len(UNITS)), min_size=1, max_size=6))
def test_order_does_not_depend_on_arrival(units, cuts):
    store = Store(f"memory://test-store-order-{next(_names)}")
    store.begin(sample_manifest())
    bounds = sorted({0, len(units), *cuts})
    for start, end in pairwise(bounds):
        store.write([sample_outcome(unit) for unit in units[start:end]])
    assert [bits(one) for one in store.outcomes()] == [bits(sample_outcome(unit)) for unit in UNITS]


def test_a_tool_that_knows_nothing_of_egcam_reads_a_part(local):
    from pyarrow import parquet

    outcome = sample_outcome(UNITS[0])
    local.write([outcome])
    row, *rows = parquet.read_table(part_files(local)[0]).to_pylist()
    assert all((one["model"], one["method"], one["image"]) == UNITS[0] for one in (row, *rows))
    assert [(one["metric"], one["value"], one["seconds"], one["cause"]) for one in rows] == [
        score[2:] for score in outcome.scores
    ]
    assert rows[1]["metric"] == "deletion"
    assert rows[1]["curve"] == outcome.curves["deletion"].tolist()
    assert (row["metric"], row["target"], row["seconds"]) == (None, outcome.target, outcome.seconds)
    assert row["shape"] == [3, 5]
    assert row["map"] == outcome.coarse.tobytes()
    assert row["picture"] == outcome.picture


def test_urls_of_local_files_and_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (f"file://{tmp_path}/results", "~/results"):
        Store(folder).begin(sample_manifest())
        assert (tmp_path / "results" / "manifest.json").exists()


def test_an_unknown_protocol_is_refused():
    with pytest.raises(StoreError, match=r"s4://bucket/results cannot be opened: .*did you mean 's3'"):
        Store("s4://bucket/results")


def test_two_studies_that_begin_at_once_both_keep_what_is_theirs(tmp_path):
    """Each writes and reads its own; the folder's manifest is whole, and that of one of them."""
    manifests = [sample_manifest(recipes={"vgg16": {"cam": f"recipe {turn}"}}) for turn in range(2)]
    for turn in range(5):
        folder, done = tmp_path / str(turn), []
        barrier = threading.Barrier(6)

        def begin(number, folder=folder, done=done, barrier=barrier):
            store = Store(folder)
            barrier.wait(20)
            store.begin(manifests[number % 2])
            barrier.wait(20)
            store.write([sample_outcome(Unit("vgg16", "cam", number))])
            barrier.wait(20)
            done.append((number % 2, {unit.image for unit in store.done()}))

        threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(done) == [(0, {0, 2, 4})] * 3 + [(1, {1, 3, 5})] * 3
        assert Store(folder).manifest.recipes in [one.recipes for one in manifests]


class TestKilled:
    """Processes killed at any instant of a tight loop of writes."""

    def test_acknowledged_work_is_kept_and_the_rest_is_whole(self, local):
        chance = random.Random(0)
        acknowledged, first, rounds = set(), 0, 15
        for _ in range(rounds):
            listening, telling = children.Pipe(duplex=False)
            child = children.Process(target=write_until_killed, args=(Path(local.folder), first, telling))
            child.start()
            telling.close()
            acknowledged.add(listening.recv())
            time.sleep(chance.uniform(0, 0.03))
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            acknowledged |= set(_all(listening))
            # Warnings are errors here: no damaged part may show.
            done = {unit.image for unit in local.done()}
            assert acknowledged <= done
            assert len(done - acknowledged) <= rounds
            assert local.damaged() == []
            first = max(done) + 1
        assert len(acknowledged) >= rounds
        outcomes = local.outcomes()
        units = [Unit("vgg16", method, image) for image in range(first) for method in ("grad-cam", "cam")]
        assert [bits(one) for one in outcomes] == [bits(sample_outcome(unit)) for unit in units]

    def test_what_a_killed_write_left_is_swept_up_when_nobody_is_at_work(self, local):
        parts = Path(local.folder, "parts")
        left, other = parts / ".egcam-0123456789abcdef.tmp", parts / ".somebody-elses.tmp"
        left.write_bytes(b"half")
        other.write_bytes(b"half")
        with local.lock((1, 2)):
            assert not left.exists()
            left.write_bytes(b"half")
            with local.lock((2, 2)):
                # Shard 1/2 may be writing it this moment.
                assert left.exists()
        assert other.exists()
        assert local.done() == set()


def _all(listening):
    try:
        while True:
            yield listening.recv()
    except EOFError:
        return


class TestDisk:
    """Disks that are full or read-only."""

    @pytest.mark.parametrize(
        ("number", "text"),
        [
            (errno.ENOSPC, "the disk is full; free some space"),
            (errno.EDQUOT, "the disk quota is used up"),
            (errno.EROFS, "the file system is read-only"),
            (errno.EACCES, "it is not permitted"),
            (errno.EIO, os.strerror(errno.EIO)),
        ],
    )
    @pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
    def test_a_failing_call_loses_nothing(self, local, monkeypatch, number, text, call):
        local.write([sample_outcome(UNITS[0])])
        before = part_files(local)
        real_write = os.write

        def fail(*arguments, **options):
            raise OSError(number, os.strerror(number))

        def write_a_little(descriptor, data):
            monkeypatch.setattr(os, "write", fail)
            return real_write(descriptor, data[:100])

        # A disk runs full in the middle of a file.
        monkeypatch.setattr(os, call, write_a_little if call == "write" else fail)
        with pytest.raises(StoreError, match=f"cannot write .*parquet: {text}.*Finished work is kept"):
            local.write([sample_outcome(UNITS[1])])
        monkeypatch.undo()
        assert sorted(Path(local.folder, "parts").iterdir()) == before
        assert local.done() == {UNITS[0]}
        local.write([sample_outcome(UNITS[1])])
        assert local.done() == set(UNITS[:2])

    def test_an_interrupt_leaves_no_half_file(self, local, monkeypatch):
        def interrupted(descriptor):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            local.write([sample_outcome(UNITS[0])])
        assert list(Path(local.folder, "parts").iterdir()) == []

    def test_a_file_that_may_not_grow(self, local):
        local.write([sample_outcome(UNITS[0])])
        listening, telling = children.Pipe(duplex=False)
        arguments = (Path(local.folder), list(UNITS[1:3]), 2000, telling)
        child = children.Process(target=write_with_file_limit, args=arguments)
        child.start()
        telling.close()
        refused, files, after = _all(listening)
        child.join()
        assert "the file would be larger than this process may write" in refused
        assert len(files) == 1
        assert after == "written"
        assert local.done() == set(UNITS[:3])

    def test_a_small_disk(self, tmp_path):
        """A real file system of 400 kB: filled, freed, then read-only."""
        space = ["unshare", "--map-root-user", "--mount"]
        mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path)]
        if not shutil.which("unshare") or subprocess.run([*space, *mount], capture_output=True).returncode:
            pytest.skip("this system does not let us mount a small disk (unshare --map-root-user --mount)")
        script = Path(__file__).parents[1] / "support" / "store_on_small_disk.py"
        command = f'{" ".join(mount[:-1])} "$0" && exec "$1" "$2" "$0"'
        run = subprocess.run(
            [*space, "sh", "-c", command, str(tmp_path), sys.executable, str(script)], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        told = json.loads(run.stdout)
        assert "the disk is full; free some space" in told["full"]
        assert told["kept"] == told["written"] > 3
        assert told["leftovers"] == []
        assert told["after"] == "written"
        assert "the file system is read-only" in told["read_only"]
        assert "read-only" in told["locked"].lower()
        assert told["readable"] == told["written"] + 1

    def test_a_file_in_place_of_the_folder(self, tmp_path):
        (tmp_path / "results").write_text("a file")
        with pytest.raises(StoreError, match=r"cannot make the folder .*results: a file is where the folder should be"):
            Store(tmp_path / "results").begin(sample_manifest())

    def test_a_folder_that_vanished(self, local):
        shutil.rmtree(local.folder)
        with pytest.raises(StoreError, match="the folder was removed while it was in use"):
            local.write([sample_outcome(UNITS[0])])

    def test_a_network_that_fails(self, monkeypatch):
        from fsspec.implementations.memory import MemoryFileSystem

        store = Store(f"memory://test-store-network-{next(_names)}")
        store.begin(sample_manifest())
        store.write([sample_outcome(UNITS[0])])

        def fail(*arguments, **options):
            raise ConnectionResetError("connection reset by peer")

        monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
        with pytest.raises(
            StoreError, match=r"cannot write memory://.*parquet: ConnectionResetError: connection reset"
        ):
            store.write([sample_outcome(UNITS[1])])
        monkeypatch.undo()
        assert store.done() == {UNITS[0]}


def test_resumed_in_any_pieces_equals_uninterrupted(tmp_path):
    whole, pieces = Store(tmp_path / "whole"), Store(tmp_path / "pieces")
    for store in (whole, pieces):
        store.begin(sample_manifest())
    whole.write([sample_outcome(unit) for unit in UNITS])
    chance = random.Random(1)
    while left := [unit for unit in UNITS if unit not in Store(pieces.folder).done()]:
        chosen = chance.sample(left, min(len(left), chance.randint(1, 5)))
        pieces.write([sample_outcome(unit) for unit in chosen])
    assert [bits(one) for one in pieces.outcomes()] == [bits(one) for one in whole.outcomes()]
    assert len(part_files(pieces)) > 5


def test_no_warning_of_the_store_in_good_order(local):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        local.begin(sample_manifest())
        local.write([sample_outcome(UNITS[0])])
        local.outcomes()
    assert seen == []
