"""A manifest knows which results may lie in one folder, and says why others may not."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from egcam.studies.manifest import DataRecord, Manifest, ModelRecord, state_checksum, versions
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
        assert again.identity == manifest.identity
        assert again.to_json() == manifest.to_json()

    def test_everything_comes_back(self):
        models = {"b": ModelRecord("1", 2, "x", (224, 256), "file.pt", "random"), "a": ModelRecord("2", 3, "y")}
        manifest = sample_manifest(models=models, decisive={"a": 1}, checksums={"plugin.py": "3"}, device="cuda")
        joined = manifest.joined(replace(manifest, versions={"python": "4"}), "results")
        again = Manifest.from_json(joined.to_json().encode())
        assert again == joined
        assert list(again.models) == ["b", "a"]
        assert again.models["b"].size == (224, 256)
        assert again.further[0].versions == {"python": "4"}

    def test_keys_are_always_in_the_same_order(self):
        assert list(json.loads(sample_manifest().to_json())) == [
            "format", "identity", "study", "data", "models", "units", "seed", "threads", "device", "decisive",
            "checksums", "references", "versions", "created", "further", "settings", "earlier",
        ]  # fmt: skip

    @pytest.mark.parametrize("value", [nan, inf])
    def test_numbers_json_does_not_know(self, value):
        manifest = changed(option=value)
        assert Manifest.from_json(manifest.to_json()).identity == manifest.identity

    def test_tuples_are_lists(self):
        assert changed(option=(1, 2)) == changed(option=[1, 2])

    def test_values_that_are_not_plain(self):
        with pytest.raises(StoreError, match=r"study must be plain values, as json can write them: .*Tensor"):
            changed(option=torch.ones(1))

    def test_of_an_earlier_egcam(self):
        text = sample_manifest().to_json().replace('"format": 3', '"format": 1')
        with pytest.raises(StoreError, match=r"has format 1, this egcam reads 3: .* or start again in another --out"):
            Manifest.from_json(text)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 3, "identity": ""}', b"\xff"])
    def test_damaged(self, text):
        with pytest.raises(StoreError, match=r"here/manifest\.json is damaged"):
            Manifest.from_json(text, "here/manifest.json")

    def test_edited(self):
        text = sample_manifest().to_json().replace('"seed": 0', '"seed": 1')
        with pytest.raises(StoreError, match="was changed since it was written"):
            Manifest.from_json(text)

    def test_of_a_later_egcam(self):
        text = sample_manifest().to_json().replace('"format": 3', '"format": 4')
        with pytest.raises(StoreError, match="has format 4, this egcam reads 3"):
            Manifest.from_json(text)


class TestIdentity:
    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({"seed": 1}, "seed: 0 -> 1"),
            ({"threads": 2}, "threads: 1 -> 2"),
            ({"device": "cuda"}, 'device: "cpu" -> "cuda"'),
            ({"checksums": {"plugin.py": "f" * 64}}, "checksums.plugin.py: 000000000000… -> ffffffffffff…"),
            ({"references": {"data": {"b": "0" * 64}}}, "references.data.b: (absent) -> 000000000000…"),
        ],
    )
    def test_what_determines_numbers(self, changes, line):
        known = {"checksums": {"plugin.py": "0" * 64}, "references": {"data": {"a": "0" * 64}}}
        old, new = sample_manifest(**known), sample_manifest(**{**known, **changes})
        assert old.identity != new.identity
        assert line in old.differences(new)

    @pytest.mark.parametrize("change", ["checksum", "parameters", "layer", "size", "code", "preprocessing"])
    def test_models(self, change):
        values = {"checksum": "c" * 64, "parameters": 11, "layer": "layer4", "size": (8, 8)}
        values |= {"code": {"model.py": "d" * 64}, "preprocessing": {"mean": [0.5]}}
        models = dict(sample_manifest().models)
        models["alexnet"] = replace(models["alexnet"], **{change: values[change]})
        lines = sample_manifest().differences(sample_manifest(models=models))
        nested = {"code": ["code", "code.model.py"], "preprocessing": ["preprocessing", "preprocessing.mean"]}
        changed_keys = nested.get(change, [change])
        assert [line.partition(": ")[0] for line in lines] == [f"models.alexnet.{key}" for key in changed_keys]

    def test_what_does_not(self):
        manifest = sample_manifest()
        models = {name: replace(model, weights="elsewhere.pt", note="n") for name, model in manifest.models.items()}
        data = replace(manifest.data, description="other words", note="n")
        other = sample_manifest(models=models, data=data, units=3, versions={}, created="later")
        assert other.identity == manifest.identity
        assert manifest.differences(other) == []

    def test_only_what_is_decisive_of_the_study(self):
        one, two = (sample_manifest(study={"title": title}, decisive={"a": 1}) for title in ("one", "two"))
        assert one.identity == two.identity != sample_manifest(study={"title": "one"}, decisive={"a": 2}).identity

    def test_order_is_nothing(self):
        manifest = sample_manifest()
        assert sample_manifest(study=dict(reversed(manifest.study.items()))).identity == manifest.identity
        assert changed(methods=manifest.study["methods"][::-1]).identity == manifest.identity
        assert sample_manifest(models=dict(reversed(manifest.models.items()))).identity == manifest.identity

    @settings(max_examples=40, deadline=None)
    @given(plain, plain)
    def test_two_configurations_differ_exactly_when_a_line_says_so(self, one, two):
        old, new = sample_manifest(study={"option": one}), sample_manifest(study={"option": two})
        assert (old.identity == new.identity) == (old.differences(new) == [])

    def test_is_the_checksum_of_plain_data(self):
        model = ModelRecord("s", 3, "l", code={"f.py": "h"}, preprocessing={"std": (1.0,)})
        pool = {"data": {"x.png": "y"}}
        methods = [{"name": "cam", "options": {"samples": 2}}]
        manifest = Manifest({"a": 1, "methods": methods}, DataRecord("d"), {"m": model}, units=1, references=pool)
        wanted = {
            "study": {"a": 1}, "study.methods.cam": methods[0], "seed": 0, "threads": 1, "device": "cpu",
            "models.m": {
                "checksum": "s", "parameters": 3, "layer": "l", "size": None,
                "code": {"f.py": "h"}, "preprocessing": {"std": [1.0]},
            },
            "references.data": {"x.png": "y"},
        }  # fmt: skip
        assert manifest.identity == hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


class TestJoining:
    def test_each_change_is_named(self):
        methods = [dict(one) for one in sample_manifest().study["methods"]]
        methods[1]["options"] = {"samples": 8}
        new = changed(methods=methods[:2], seed=3)
        with pytest.raises(StoreError) as caught:
            sample_manifest().joined(new, "results/")
        assert str(caught.value).splitlines() == [
            "results/ holds results of another configuration, and they do not mix:",
            "  study.methods.cam.options: {} -> (absent)",
            "  study.methods.cam.options.samples: (absent) -> 8",
            "  study.seed: 0 -> 3",
            "Use another --out, or the old study file.",
        ]

    def test_what_only_one_of_them_has_may_come_and_go(self):
        old = sample_manifest(references={"data": {"a": "1"}}, checksums={"old.py": "1"})
        methods = [*old.study["methods"][:2], {"name": "mine", "method": "cam", "options": {}}]
        models = {"vgg16": old.models["vgg16"], "tiny": ModelRecord("c" * 64, 2, "0")}
        new = sample_manifest(
            study={**old.study, "methods": methods}, models=models, data=DataRecord("one more", ("a", "b"))
        )
        joined = old.joined(new, "results/")
        assert (joined.study, joined.models, joined.data.names) == (new.study, new.models, ("a", "b"))
        assert joined.settings == {**old.settings, **new.settings}
        assert joined.identities == {old.identity, joined.identity}
        assert joined.joined(new, "results/") == joined
        assert Manifest.from_json(joined.to_json()) == joined
        changed_back = replace(old, references={"data": {"a": "2"}}, settings={})
        with pytest.raises(StoreError, match=r'references\.data\.a: "1" -> "2"'):
            joined.joined(changed_back, "results/")

    def test_other_images_under_the_same_names_are_refused(self):
        old = sample_manifest()
        other = replace(old, data=replace(old.data, contents={"a": "e2 5 m", "b": "f - -"}))
        with pytest.raises(StoreError) as caught:
            old.joined(other, "results/")
        assert str(caught.value).splitlines() == [
            "results/ holds results of other images under the same names, and they do not mix:",
            "  a: other pixels, label - -> 5, another mask",
            "Put the old files back, or use another --out.",
        ]

    def test_an_image_that_could_not_be_read_before_is_known_from_now_on(self):
        old = sample_manifest()
        joined = old.joined(replace(old, data=replace(old.data, contents={"b": "f - -"})), "results/")
        assert joined.data.contents == {"a": "e1 - -", "b": "f - -"}
        assert joined.identity == old.identity

    def test_many_changes_are_cut_short(self):
        with pytest.raises(StoreError, match=r"… and 5 more\nUse another --out"):
            sample_manifest().joined(changed(**{f"key{n}": n for n in range(25)}), "results/")

    def test_another_python_is_noted_and_accepted(self):
        old = sample_manifest()
        joined = old.joined(sample_manifest(versions={**old.versions, "python": "3.12.0"}), "results/")
        assert joined.versions == old.versions
        assert [one.versions["python"] for one in joined.further] == ["3.12.0"]

    def test_a_package_only_one_has_is_no_difference(self):
        old = sample_manifest()
        assert (
            old.joined(sample_manifest(versions={**old.versions, "timm": "1.0"}), "results/").identity == old.identity
        )

    @pytest.mark.parametrize("package", ["egcam", "torch", "numpy"])
    def test_another_version_is_refused(self, package):
        old = sample_manifest()
        with pytest.raises(StoreError) as caught:
            old.joined(sample_manifest(versions={**old.versions, package: "9"}), "results/")
        assert str(caught.value).splitlines() == [
            "results/ holds results made with other versions, which may differ in their last digits:",
            f"  {package}: {old.versions[package]} -> 9",
            "Install the old versions, use another --out, or accept it with mix_versions=True (--mix-versions).",
        ]

    def test_another_processor_is_doubted_until_it_is_known(self):
        old = sample_manifest()
        other = sample_manifest(versions={**old.versions, "cpu": "two"})
        assert old.hardware_change(old, "results/") is None
        wanted = "results/ holds results from one; those from two may differ in their last digits"
        assert old.hardware_change(other, "results/") == wanted
        assert old.joined(other, "results/").hardware_change(other, "results/") is None


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
