"""Gradio's controls, with the checking left to `egcam.web.choices` and `egcam.web.limits`.

Gradio checks values against the choices a control offers, in words of its own; reads uploads before their size is
checked; and fetches addresses a crafted request names. These controls hand over what came, and fetch nothing.
"""

from __future__ import annotations

from abc import ABCMeta
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.component_meta import ComponentMeta

Control = TypeVar("Control", bound=Any)


class _Quiet(ComponentMeta):
    """Makes a control's class without writing a stub file beside its source, as Gradio does."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


def _as_sent(control: Control) -> Control:
    """Make a control hand over the value as it came.

    No base class does this: Gradio names a control's script after the first base of its class.
    """
    control.is_template = True
    control.preprocess = lambda self, payload: payload
    return control


@_as_sent
class AnyDropdown(gr.Dropdown, metaclass=_Quiet):
    """A dropdown that hands over any value."""


@_as_sent
class AnyRadio(gr.Radio, metaclass=_Quiet):
    """Radio buttons that hand over any value."""


@_as_sent
class AnyCheckboxGroup(gr.CheckboxGroup, metaclass=_Quiet):
    """Checkboxes that hand over any values."""


@_as_sent
class AnySlider(gr.Slider, metaclass=_Quiet):
    """A slider that hands over any value."""


@_as_sent
class AnyNumber(gr.Number, metaclass=_Quiet):
    """A number that may be anything."""


@_as_sent
class Drop(gr.File, metaclass=_Quiet):
    """A place to drop files: hands over where an upload was put, `path` and `orig_name`, and never opens it."""

    async def async_move_resource_to_block_cache(self, url_or_file_path: str | Path | None) -> str | None:
        """Uploads are in the page's folder already; an address is refused, where Gradio would fetch it."""
        if "://" in str(url_or_file_path):
            raise gr.Error(
                "That is an address, not an uploaded file: drop an image on the page.", print_exception=False
            )
        return await super().async_move_resource_to_block_cache(url_or_file_path)
