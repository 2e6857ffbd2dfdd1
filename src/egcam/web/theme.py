"""How the page looks: colours, spacing, and the little script it needs. Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from egcam.pages import render

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONOSPACED = ("ui-monospace", "Menlo", "Consolas", "monospace")

# Paste an image anywhere; keep the focus on a drop-down after a choice; let screen readers hear the status line; on a
# phone bring a new result into view; a pane with a new result is not old any more (see OUTDATED).
SCRIPT = """
() => {
  document.documentElement.lang = 'en';
  document.addEventListener('paste', (event) => {
    const image = [...(event.clipboardData?.files ?? [])].find((file) => file.type.startsWith('image/'));
    const input = document.querySelector('#drop input[type=file]');
    if (!image || !input) return;
    const files = new DataTransfer();
    files.items.add(image);
    input.files = files.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  });
  // After a choice Gradio takes the focus off a drop-down, and the next Tab begins at the top of the page: it hears
  // of a blur, and the focus stays. Not where that would leave a keyboard over the screen.
  const isList = (one) => one.matches?.('input[role=combobox]');
  const hears = (list, kind) => list.dispatchEvent(new FocusEvent(kind));
  if (!matchMedia('(pointer: coarse)').matches) {
    document.addEventListener('focusin', ({ target }) => {
      if (isList(target)) target.blur = () => hears(target, 'blur');
    });
  }
  // Gradio opens a list when the focus comes; where it has stayed, a press or a key opens it again.
  const opens = ({ type, key, ctrlKey, metaKey }) =>
    type === 'mousedown' || (!ctrlKey && !metaKey && (key.length === 1 || key.startsWith('Arrow')));
  for (const kind of ['mousedown', 'keydown']) {
    document.addEventListener(kind, (event) => {
      const { target } = event;
      const isClosed = isList(target) && target === document.activeElement && target.ariaExpanded === 'false';
      if (isClosed && opens(event)) hears(target, 'focus');
    }, true);
  }
  const status = document.querySelector('#status');
  status?.setAttribute('role', 'status');
  status?.setAttribute('aria-live', 'polite');
  const renewed = (pane) => {
    if (!pane.querySelector('h3, img')) return;
    pane.classList.remove('eg-old');
    const { top } = pane.getBoundingClientRect();
    const hidden = pane.checkVisibility() && (top < 0 || top > innerHeight / 2);
    if (innerWidth < 768 && hidden) pane.scrollIntoView({ block: 'start' });
  };
  // On the whole page: tabs are made when they are first opened.
  new MutationObserver((changes) => {
    const panes = changes.map((change) => change.target.closest?.('[id$="-pane"]'));
    new Set(panes.filter(Boolean)).forEach(renewed);
  }).observe(document.body, { childList: true, subtree: true });
}
"""

# Results that a button asked for are of the former class and settings: page.css says so over them.
OUTDATED = """
() => {
  for (const name of ['compare', 'metrics', 'saturation']) {
    const pane = document.querySelector(`#${name}-pane`);
    if (pane?.innerText.trim()) pane.classList.add('eg-old');
  }
}
"""

# Hands a file that is ready to the browser's own download.
DOWNLOAD = """
(file) => {
  if (!file?.url) return;
  const link = document.createElement('a');
  link.href = file.url;
  link.download = file.orig_name ?? 'egcam';
  document.body.append(link);
  link.click();
  link.remove();
}
"""


def stylesheet(thumbnails: Mapping[str, str]) -> str:
    """The page's CSS; `thumbnails` are data URLs of the samples' pictures, by name."""
    shade = "linear-gradient(transparent 55%, rgb(0 0 0 / .65))"
    pictures = [
        f'#sample-{name} {{ background-image: {shade}, url("{url}") !important; }}' for name, url in thumbnails.items()
    ]
    own = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return "\n".join([render("style.css", document=False), own, *pictures])


def theme() -> Any:
    """Gradio's plain theme in the system's own letters, with colours dark enough to read."""
    import gradio as gr

    made = gr.themes.Default(
        primary_hue="blue", secondary_hue="blue", neutral_hue="slate", font=FONTS, font_mono=MONOSPACED
    )
    return made.set(
        button_primary_background_fill="#005a8c",
        button_primary_background_fill_hover="#004870",
        button_primary_background_fill_dark="#0b6fa8",
        button_primary_background_fill_hover_dark="#0072b2",
        button_primary_text_color="white",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
    )
