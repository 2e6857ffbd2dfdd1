"""Keys, and the manifest that says which of the results in a folder are the study's."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from egcam.studies.datasets.dataset import Picture
from egcam.studies.keys import content_of, recipe_of, settings_of
from egcam.studies.manifest import DataRecord, Manifest, ModelRecord, state_checksum, versions
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study
from egcam.studies.storage import StoreError
from support.store_samples import sample_manifest

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def changed(**changes):
    return sample_manifest(study={**sample_manifest().study, **changes})


class TestText:
    @settings(max_examples=40, deadline=None)
    @given(st.dictionaries(st.text(), plain, max_size=4))
    def test_any_configuration_comes_back(self, study):
        manifest = sample_manifest(study=study)
        again = Manifest.from_json(manifest.to_json())
        assert again == manifest
        assert again.to_json() == manifest.to_json()

    def test_everything_comes_back(self):
        models = {"b": ModelRecord("1", 2, "x", (224, 256), "file.pt", "random"), "a": ModelRecord("2", 3, "y")}
        data = DataRecord("d", {"b.png": "1", "\udcff.png": None}, "a note")
        manifest = sample_manifest(models=models, data=data, recipes={"b": {"cam": "1"}})
        after = replace(manifest, versions={"python": "4"}).after(manifest, "results")
        again = Manifest.from_json(after.to_json().encode())
        assert again == after
        assert (list(again.models), list(again.data.names)) == (["b", "a"], ["b.png", "\udcff.png"])
        assert again.models["b"].size == (224, 256)
        assert again.further[0].versions == {"python": "4"}

    def test_keys_are_always_in_the_same_order(self):
        assert list(json.loads(sample_manifest().to_json())) == [
            "format", "checksum", "study", "data", "models", "units", "recipes", "settings", "versions", "created",
            "further",
        ]  # fmt: skip

    @pytest.mark.parametrize("value", [nan, inf])
    def test_numbers_json_does_not_know(self, value):
        manifest = changed(option=value)
        assert Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()

    def test_tuples_are_lists(self):
        assert changed(option=(1, 2)) == changed(option=[1, 2])

    def test_values_that_are_not_plain(self):
        with pytest.raises(StoreError, match=r"study must be plain values, as json can write them: .*Tensor"):
            changed(option=torch.ones(1))

    @pytest.mark.parametrize("number", [3, 5])
    def test_of_another_egcam(self, number):
        text = sample_manifest().to_json().replace('"format": 4', f'"format": {number}')
        with pytest.raises(StoreError, match=rf"has format {number}, this egcam reads 4: .* start again in another"):
            Manifest.from_json(text)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 4}', b"\xff"])
    def test_damaged(self, text):
        with pytest.raises(StoreError, match=r"here/manifest\.json (is damaged|was changed)"):
            Manifest.from_json(text, "here/manifest.json")

    def test_edited(self):
        text = sample_manifest().to_json().replace('"seed": 0', '"seed": 1')
        with pytest.raises(StoreError, match="was changed since it was written"):
            Manifest.from_json(text)


STUDY = Study(
    "s", (ModelSpec("vgg16"),), DataSpec("folder", "photos"),
    methods=(MethodSpec("mine", "slope-cam", {"samples": 8}),), metrics=(MetricSpec("insertion", {"step": 2}),),
)  # fmt: skip
INPUTS = {"checksum": "c", "code": {"a.py": "x"}, "preprocessing": {"mean": (0.5,)}}


class TestKeys:
    """Whatever determines numbers changes the key, and nothing else does."""

    def recipe(
        self, study=STUDY, inputs=INPUTS, device="cpu", method=None, source="data", references=(("a.png", "1"),)
    ):
        return recipe_of(study, study.models[0], inputs, device, method or study.methods[0], source, dict(references))

    @pytest.mark.parametrize(
        "change",
        [
            {"inputs": {**INPUTS, "checksum": "d"}},
            {"inputs": {**INPUTS, "code": {"a.py": "y"}}},
            {"inputs": {**INPUTS, "preprocessing": {"mean": (0.4,)}}},
            {"device": "cuda"},
            {"method": MethodSpec("mine", "slope-cam", {"samples": 9})},
            {"method": MethodSpec("other", "slope-cam", {"samples": 8})},
            {"source": "black"},
            {"references": {"a.png": "2"}},
            *({"study": replace(STUDY, **one)} for one in (
                {"seed": 1}, {"threads": 2}, {"target": "second"}, {"batch_size": 3},
                {"data": DataSpec("folder", "photos", size=96)}, {"models": (ModelSpec("vgg16", layer="features.0"),)},
                {"models": (ModelSpec("vgg16", weights="random"),)},
            )),
        ],
    )  # fmt: skip
    def test_what_determines_numbers(self, change):
        assert self.recipe(**change) != self.recipe()

    def test_what_does_not(self):
        for one in (
            {"title": "t", "maps": "all", "examples": 9, "primary": "insertion"},
            {"data": DataSpec("folder", "elsewhere", images=3)},
            {"models": (ModelSpec("vgg16", classes="names.txt"),)},
            {"metrics": ()},
        ):
            assert self.recipe(replace(STUDY, **one)) == self.recipe()
        folders = [self.recipe(source=source) for source in ("/a/pool", "/b/pool")]
        assert folders[0] == folders[1] != self.recipe()

    def test_a_plugin_is_known_by_its_text(self, tmp_path):
        plugin = tmp_path / "plugin.py"
        study = replace(STUDY, plugins=(str(plugin),))
        keys = set()
        for text in ("a = 1", "a = 2", "a = 1"):
            plugin.write_text(text)
            keys.add(self.recipe(study))
        assert len(keys) == 2

    def test_metrics(self):
        studies = [
            STUDY,
            replace(STUDY, metrics=(MetricSpec("insertion", {"step": 3}),)),
            replace(STUDY, protocol="paper"),
        ]
        keys = [settings_of(study) for study in studies]
        assert all(list(one) == ["insertion"] for one in keys)
        assert len({one["insertion"] for one in keys}) == 3
        # Curves of both are kept with the metric that needs them.
        both = settings_of(replace(STUDY, metrics=(MetricSpec("insertion-deletion"),)))
        assert both["insertion"] == both["deletion"] == both["insertion-deletion"]

    def test_images(self):
        mask = np.eye(4, dtype=bool)
        first = Picture("a.png", Image.new("RGB", (4, 4)), 1, mask)
        others = (
            replace(first, name="b.png"),
            replace(first, image=Image.new("RGB", (4, 4), "red")), replace(first, label=2),
            replace(first, mask=None), replace(first, mask=~mask), replace(first, image=Image.new("RGB", (2, 8))),
        )  # fmt: skip
        assert len({content_of(one) for one in (first, *others)}) == 7
        assert content_of(replace(first, image=first.image.copy())) == content_of(first)


class TestAfterAFormerRun:
    def test_contents_that_only_the_former_knows_are_kept(self):
        former = sample_manifest(data=DataRecord("", {"gone": "1", "a": "2", "b": "3"}))
        after = sample_manifest(data=DataRecord("", {"a": None, "b": "4", "c": None})).after(former, "results/")
        assert after.data.images == {"a": "2", "b": "4", "c": None}

    def test_another_python_is_noted_and_accepted(self):
        old = sample_manifest()
        after = sample_manifest(versions={**old.versions, "python": "3.12.0"}).after(old, "results/")
        assert after.versions == old.versions
        assert [one.versions["python"] for one in after.further] == ["3.12.0"]
        assert after.after(after, "results/") == after

    def test_a_package_only_one_has_is_no_difference(self):
        old = sample_manifest()
        new = sample_manifest(versions={**old.versions, "timm": "1.0"})
        assert len(new.after(old, "results/").environments) == 2

    @pytest.mark.parametrize("package", ["egcam", "torch", "numpy"])
    def test_another_version_is_refused(self, package):
        old = sample_manifest()
        new = sample_manifest(versions={**old.versions, package: "9"})
        with pytest.raises(StoreError) as caught:
            new.after(old, "results/")
        assert str(caught.value).splitlines() == [
            "results/ holds results made with other versions, which may differ in their last digits:",
            f"  {package}: {old.versions[package]} -> 9",
            "Install the old versions, use another --out, or accept it with mix_versions=True (--mix-versions).",
        ]
        assert new.after(old, "results/", mix_versions=True).environments == (old.versions, new.versions)

    def test_another_processor_is_doubted_until_it_is_known(self):
        old = sample_manifest()
        other = sample_manifest(versions={**old.versions, "cpu": "two"})
        assert old.hardware_change(old, "results/") is None
        wanted = "results/ holds results from one; those from two may differ in their last digits"
        assert other.hardware_change(old, "results/") == wanted
        assert other.hardware_change(other.after(old, "results/"), "results/") is None


class TestChecksums:
    def test_state_by_hand(self):
        layer = nn.Linear(2, 1)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
            layer.bias.fill_(3.0)
        text = b"'bias' torch.float32 (1,)\n" + struct.pack("<f", 3)
        text += b"'weight' torch.float32 (1, 2)\n" + struct.pack("<ff", 1, 2)
        assert state_checksum(layer) == hashlib.sha256(text).hexdigest()

    def test_state_sees_every_bit_type_shape_and_buffer(self):
        def network():
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

        same = state_checksum(network())
        assert state_checksum(network()) == same
        others = [network() for _ in range(4)]
        others[0][0].weight.data.view(torch.int32)[0, 0, 0, 0] ^= 1
        others[1].half()
        others[2][1].running_mean[0] = -0.0
        others[3][1].num_batches_tracked += 1
        checksums = {state_checksum(other) for other in others}
        assert len(checksums) == 4
        assert same not in checksums

    def test_state_is_the_same_in_any_memory_layout_and_mode(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3))
        before = state_checksum(model)
        model.to(memory_format=torch.channels_last)
        model.eval().requires_grad_(False)
        assert state_checksum(model) == before

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.int8])
    def test_state_of_any_type(self, dtype):
        model = nn.Module()
        model.register_buffer("empty", torch.empty(0, dtype=dtype))
        model.register_buffer("single", torch.tensor(1).to(dtype))
        before = state_checksum(model)
        model.single = torch.tensor(0).to(dtype)
        assert state_checksum(model) != before

    def test_versions(self):
        import platform

        import egcam

        found = versions()
        assert found["egcam"] == egcam.__version__
        assert found["torch"] == torch.__version__
        assert found["python"] == platform.python_version()
        assert torch.backends.cpu.get_cpu_capability() in found["cpu"]
        assert "gpu" not in versions("cpu")
        assert all(isinstance(value, str) for value in found.values())
