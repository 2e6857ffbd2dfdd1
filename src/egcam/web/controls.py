"""Gradio's controls, with the checking left to `egcam.web.choices` and `egcam.web.limits`.

Gradio checks values against the choices a control offers, in words of its own; reads uploads before their size is known
to be bearable; and fetches addresses a crafted request names. These controls hand over what came, and fetch nothing.
"""

from __future__ import annotations

from abc import ABCMeta
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta


class _Quiet(ComponentMeta):
    """Makes a control's class without writing a stub file beside its source, as Gradio does."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


class AnyDropdown(gr.Dropdown, metaclass=_Quiet):
    """A dropdown that hands over any value."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """The value as it came."""
        return payload


class AnyRadio(gr.Radio, metaclass=_Quiet):
    """Radio buttons that hand over any value."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """The value as it came."""
        return payload


class AnyCheckboxGroup(gr.CheckboxGroup, metaclass=_Quiet):
    """Checkboxes that hand over any values."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """The values as they came."""
        return payload


class AnySlider(gr.Slider, metaclass=_Quiet):
    """A slider that hands over any value."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """The value as it came."""
        return payload


class AnyNumber(gr.Number, metaclass=_Quiet):
    """A number that may be anything."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """The value as it came."""
        return payload


class Drop(gr.File, metaclass=_Quiet):
    """A place to drop files: hands over where an upload was put and its name, and never opens it."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        """Where the upload is: `path` and `orig_name`."""
        return payload

    async def async_move_resource_to_block_cache(self, url_or_file_path: str | Path | None) -> str | None:
        """Uploads are in the page's folder already; an address is refused, where Gradio would fetch it."""
        if "://" in str(url_or_file_path):
            raise gr.Error(
                "That is an address, not an uploaded file: drop an image on the page.", print_exception=False
            )
        return await super().async_move_resource_to_block_cache(url_or_file_path)
