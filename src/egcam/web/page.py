"""The page: what stands where, and which action each control starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from egcam.attribution.references import MADE_BY_NAME
from egcam.attribution.registry import method as registered
from egcam.attribution.registry import records, usual_methods
from egcam.web import fragments
from egcam.web.actions import Actions
from egcam.web.choices import USUAL
from egcam.web.controls import AnyCheckboxGroup, AnyDropdown, AnyNumber, AnyRadio, AnySlider, Drop
from egcam.web.jobs import Turn
from egcam.web.theme import DOWNLOAD, OUTDATED, SCRIPT, stylesheet, theme

TITLE = "What did the network look at?"
_DEFAULT_METHOD = "slope-cam"
# A visitor waits for scores, which take many passes besides: the quick methods are ticked.
# Each method's own number, as `egcam explain` takes it.
_DEFAULT_SAMPLES = 0
_HOUR = 3600
# Seconds between looks for files that are old.
_LOOK_AT_FILES = 60
# Nobody sees that their work begins this much later.
_LOOK_SECONDS = 0.03
# All that runs the network or draws takes turns: the network is shared, and the processor is the limit.
_QUEUE: dict[str, Any] = {"concurrency_id": "network", "concurrency_limit": 1, "trigger_mode": "multiple"}


@dataclass(frozen=True)
class Page:
    """The built page and what the server needs to show it."""

    blocks: gr.Blocks
    css: str
    script: str
    theme: Any


def build(actions: Actions) -> Page:
    """Lay the page out."""
    thumbnails = {name: fragments.thumbnail(one.read(), 160) for name, one in actions.samples.items()}
    kept = max(1, round(actions.limits.keep_seconds))
    with gr.Blocks(
        title=f"egcam: {TITLE}", analytics_enabled=False, delete_cache=(min(kept, _LOOK_AT_FILES), kept)
    ) as blocks:
        _Layout(actions).build()
    blocks.queue(max_size=actions.limits.waiting, default_concurrency_limit=1, api_open=False)
    # Gradio looks a thousand times a second whether somebody waits, and a hundred times for progress, which is told by
    # other means here: a twentieth of a core, all day long.
    blocks._queue.sleep_when_free = _LOOK_SECONDS
    blocks._queue.progress_update_sleep_when_free = 1.0
    return Page(blocks, stylesheet(thumbnails), SCRIPT, theme())


class _Layout:
    """The controls, in the order they are met."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions
        self.events: list[Any] = []

    def build(self) -> None:
        """Everything, from the heading to the wiring."""
        name = self.actions.shared.classifier.name
        gr.HTML(
            f'<div class="eg-head"><h1>{TITLE}</h1><p>Show <code>{escape(name)}</code> an image, and see where '
            "it looked for the class it named. Images stay on this server, in a temporary folder.</p></div>"
        )
        self.turn = gr.State(Turn())
        self.photo = gr.State(None, time_to_live=_HOUR)
        self.explained, self.compared = gr.State(None, time_to_live=_HOUR), gr.State(None, time_to_live=_HOUR)
        self.scores = gr.State(None, time_to_live=_HOUR)
        # The class chosen last, whatever is typed since, and the turn in which another was chosen.
        self.chosen = gr.State(None)
        self.changed = AnyNumber(0, visible="hidden", label="class changed")
        self.ticket = AnyNumber(0, visible="hidden", label="turn")
        self.file = gr.File(visible="hidden", label="download", interactive=False)
        self._status()
        # On a phone the result comes between the image and the settings: page.css places the three.
        with gr.Row(equal_height=False, elem_classes="eg-main"):
            with gr.Column(min_width=0, elem_classes="eg-column eg-image"):
                self._image()
            with gr.Column(min_width=0, elem_classes="eg-column eg-results"), gr.Tabs():
                self._explain_tab()
                self._compare_tab()
                self._metrics_tab()
                self._saturation_tab()
            with gr.Column(min_width=0, elem_classes="eg-column eg-choices"):
                self._class()
                self._settings()
        self._wire()

    def _image(self) -> None:
        limits = self.actions.limits
        gr.HTML('<h2 class="eg-step">1. An image</h2>')
        self.drop = Drop(
            label=f"Drop, paste or choose (up to {limits.megabytes:g} MB)",
            file_types=["image"],
            elem_id="drop",
            height=120,
        )
        self.sample_buttons: dict[str, gr.Button] = {}
        if self.actions.samples:
            gr.HTML('<p class="eg-faint">or take a sample:</p>')
            with gr.Row(elem_classes="eg-samples"):
                for name in self.actions.samples:
                    self.sample_buttons[name] = gr.Button(name, elem_id=f"sample-{name}", min_width=40)

    def _class(self) -> None:
        shared = self.actions.shared
        gr.HTML('<h2 class="eg-step">2. A class</h2>')
        self.top = AnyRadio([], label="Top classes", info="What the network says, surest first.", elem_id="top")
        self.target = AnyDropdown(
            [(f"{name} ({index})", index) for index, name in enumerate(shared.classes)],
            value=None,
            label="Or any class",
            # What is typed and no class comes to the server, which says so: Gradio would keep silent.
            allow_custom_value=True,
            info=f"Type to search all {len(shared.classes)}.",
            elem_id="target",
        )

    def _settings(self) -> None:
        shared, limits = self.actions.shared, self.actions.limits
        with gr.Accordion("3. Settings", open=False, elem_id="settings"):
            self.layer = AnyDropdown(
                [("the method's own", USUAL), *((choice.label, choice.name) for choice in shared.layers)],
                value=shared.layer,
                label="Layer",
                info="Where the maps are made: later layers know more of what is seen, earlier ones more of where.",
                elem_id="layer",
            )
            self.samples = AnySlider(
                0,
                limits.samples,
                _DEFAULT_SAMPLES,
                step=1,
                label="Samples",
                info="Of the methods that average: more is smoother and slower. 0 is each method's own number.",
                elem_id="samples",
            )
            self.reference = AnyDropdown(
                [("the method's own" if name == USUAL else name, name) for name in MADE_BY_NAME],
                value=USUAL,
                label="Reference",
                info="What the image is compared with, by the methods that compare.",
                elem_id="reference",
            )

    def _status(self) -> None:
        with gr.Row(equal_height=False, elem_classes="eg-bar"):
            self.status = gr.HTML(
                fragments.message("Drop an image, or take a sample, to begin."), elem_id="status", min_width=180
            )
            self.stop = gr.Button("Stop", elem_id="stop", scale=0, min_width=80, size="md", interactive=False)

    def _explain_tab(self) -> None:
        with gr.Tab("Explain", id="explain"):
            with gr.Row(equal_height=False):
                self.method = AnyDropdown(
                    _method_choices(), value=_DEFAULT_METHOD, label="Method", elem_id="method", scale=3, min_width=200
                )
                self.explain_button = gr.Button("Explain", variant="primary", elem_id="explain", scale=1, min_width=120)
            self.method_words = gr.HTML(self._described(_DEFAULT_METHOD), elem_id="method-words")
            self.explain_pane = gr.HTML(elem_classes="eg-pane", elem_id="explain-pane")
            self.explain_files = _download_buttons("explain", ("PNG", "SVG", "maps"))

    def _compare_tab(self) -> None:
        with gr.Tab("Compare", id="compare"):
            self.methods = AnyCheckboxGroup(
                _method_choices(), value=usual_methods(), label="Methods", elem_id="methods"
            )
            with gr.Accordion("What the methods do", open=False):
                gr.HTML(fragments.descriptions({one.name: one.summary for one in records() if one.is_available}))
            self.compare_button = gr.Button("Compare", variant="primary", elem_id="compare")
            self.compare_pane = gr.HTML(elem_classes="eg-pane", elem_id="compare-pane")
            self.compare_files = _download_buttons("compare", ("PNG", "SVG", "maps"))

    def _metrics_tab(self) -> None:
        with gr.Tab("Metrics", id="metrics"):
            self.measured = AnyCheckboxGroup(
                _method_choices(),
                value=usual_methods(),
                label="Methods to measure on this image",
                elem_id="measured",
            )
            self.measure_button = gr.Button("Measure", variant="primary", elem_id="measure")
            self.metrics_pane = gr.HTML(elem_classes="eg-pane", elem_id="metrics-pane")
            self.scores_files = _download_buttons("metrics", ("CSV",))

    def _saturation_tab(self) -> None:
        with gr.Tab("Saturation", id="saturation"):
            gr.HTML(
                "<p>The image is scaled up from black, at the layer in the settings or the one that SlopeCAM explains. "
                "Where the gradient at the image is another than on the way there, maps made of it mislead.</p>"
            )
            self.saturate_button = gr.Button("Measure saturation", variant="primary", elem_id="saturate")
            self.saturation_pane = gr.HTML(elem_classes="eg-pane", elem_id="saturation-pane")

    # Wiring

    def _wire(self) -> None:
        actions = self.actions
        settings = [self.method, self.layer, self.samples, self.reference]
        opened = [
            *(self.status, self.photo, self.top, self.target, self.drop),
            *(self.explain_pane, self.explained, self.compare_pane, self.compared),
            *(self.metrics_pane, self.scores, self.saturation_pane, self.chosen),
        ]
        self._then(self.drop.upload, actions.open_upload, "open_upload", [self.drop, *settings], opened)
        for name, button in self.sample_buttons.items():
            self._then(button.click, partial(actions.open_sample, name), f"open_{name}", settings, opened)
        explaining = [self.photo, self.target, *settings]
        explained = [self.status, self.explain_pane, self.explained]
        self._then(self.explain_button.click, actions.explain, "explain", explaining, explained)
        self.top.input(_twice, self.top, [self.target, self.chosen], api_name="top", **_AT_ONCE)
        self._then(self.top.input, actions.explain, "explain_top", [self.photo, self.top, *settings], explained)
        begun = self.target.input(
            actions.begin_class,
            [self.turn, self.photo, self.target, self.chosen],
            [*self._told(), self.target, self.chosen, self.top, self.changed],
            api_name="begin_explain_class",
            **_AT_ONCE,
        )
        self._queue(begun, actions.explain, "explain_class", [self.photo, self.chosen, *settings], explained)
        # Not `input`, which Gradio also calls when a list is left without a choice.
        for control, name in ((self.method, "method"), (self.layer, "layer"), (self.reference, "reference")):
            self._then(control.change, actions.explain_again, f"explain_{name}", explaining, explained)
        self._then(self.samples.release, actions.explain_again, "explain_samples", explaining, explained)
        for changed in (
            self.top.input,
            self.changed.change,
            self.layer.change,
            self.reference.change,
            self.samples.release,
        ):
            changed(None, None, None, js=OUTDATED)
        self.method.change(self._described, self.method, self.method_words, api_name="describe", **_AT_ONCE)
        common = [self.layer, self.samples, self.reference]
        comparing, compared = [self.photo, self.target, self.methods, *common], [self.compare_pane, self.compared]
        self._then(self.compare_button.click, actions.compare, "compare", comparing, [self.status, *compared])
        measuring, measured = [self.photo, self.target, self.measured, *common], [self.metrics_pane, self.scores]
        self._then(self.measure_button.click, actions.measure, "measure", measuring, [self.status, *measured])
        saturating = [self.photo, self.target, self.layer]
        self._then(
            self.saturate_button.click, actions.saturate, "saturate", saturating, [self.status, self.saturation_pane]
        )
        self._wire_downloads()
        stopped = self.stop.click(
            actions.stop, self.turn, [self.status, self.stop], cancels=self.events, api_name="stop", **_AT_ONCE
        )
        self._offer(stopped, "stop")

    def _then(
        self,
        trigger: Callable[..., Any],
        action: Callable[..., Iterator[Any]],
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        """On the trigger, end what is running at once; then queue the action."""
        begun = trigger(self.actions.begin, self.turn, self._told(), api_name=f"begin_{name}", **_AT_ONCE)
        self._queue(begun, action, name, inputs, outputs)

    def _told(self) -> list[Any]:
        """What the beginning of work shows."""
        return [self.status, self.ticket, self.stop]

    def _queue(
        self,
        begun: Any,
        action: Callable[..., Iterator[Any]],
        name: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> None:
        """Queue an action that has begun."""
        done = begun.then(
            action,
            [self.ticket, self.turn, *inputs],
            list(outputs),
            api_name=name,
            show_progress="minimal",
            show_progress_on=[self.status],
            **_QUEUE,
        )
        self.events.append(done)
        self._offer(done, name)

    def _offer(self, done: Any, name: str) -> None:
        """Afterwards, let only those buttons be pressed that do something."""
        groups = (self.explain_files, self.compare_files, self.scores_files)
        states = (self.explained, self.compared, self.scores)
        each = [state for state, buttons in zip(states, groups, strict=True) for _ in buttons]
        buttons = [button for group in groups for button in group]
        done.then(self.actions.offered, [self.turn, *each], [self.stop, *buttons], api_name=f"offer_{name}", **_AT_ONCE)

    def _wire_downloads(self) -> None:
        actions = self.actions
        for buttons, action, state, name in (
            (self.explain_files, actions.download_maps, self.explained, "explained"),
            (self.compare_files, actions.download_maps, self.compared, "compared"),
        ):
            for kind, button in zip(("png", "svg", "npz"), buttons, strict=True):
                self._download(button, partial(action, kind), state, f"{name}_{kind}")
        self._download(self.scores_files[0], actions.download_scores, self.scores, "scores_csv")

    def _download(self, button: gr.Button, action: Callable[..., Iterator[Any]], state: gr.State, name: str) -> None:
        made = button.click(
            action,
            [self.photo, state],
            [self.status, self.file],
            api_name=name,
            show_progress="minimal",
            show_progress_on=[self.status],
            **_QUEUE,
        )
        made.then(None, self.file, None, js=DOWNLOAD)

    def _described(self, method: Any) -> str:
        record = registered(str(method))
        return f'<p class="eg-faint">{escape(record.label)}: {escape(record.summary)}</p>'


_AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", "trigger_mode": "multiple"}


def _twice(value: Any) -> tuple[Any, Any]:
    return value, value


def _method_choices() -> list[tuple[str, str]]:
    return [(one.label, one.name) for one in records() if one.is_available]


def _download_buttons(group: str, names: Sequence[str]) -> list[gr.Button]:
    with gr.Row(elem_classes="eg-files"):
        return [
            gr.Button(
                f"Download {name}", size="sm", elem_id=f"{group}-{name.lower()}", min_width=100, interactive=False
            )
            for name in names
        ]
