"""Run the notebooks, keep their outputs in them, and write them as pages of the site, docs/notebooks/.

python docs/tools/run_notebooks.py            # all
python docs/tools/run_notebooks.py 1 3        # some

Needs nbclient and ipykernel, the extras demo and study, no network connection, and some minutes of one core. The pages
are Markdown: text, code, what it printed, and pictures as files beside them.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = ROOT / "docs" / "notebooks"
WIDEST = 1200


def run(file: Path) -> Any:
    """The notebook, run in an empty folder, with small outputs and without anything that differs between two runs."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": scratch}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = [kept for output in cell.outputs if (kept := _small(output, scratch)) is not None]
    notebook.metadata.pop("widgets", None)
    return notebook


def _small(output: Any, folder: str) -> Any:
    """An output without progress bars, machine paths and large pictures; None where nothing is left."""
    if output.output_type == "stream":
        output.text = output.text.replace(folder, ".")
        return None if output.name == "stderr" else output
    data = output.get("data", {})
    if "image/png" in data:
        output.data = {"image/jpeg": _as_jpeg(data["image/png"]), "text/plain": data.get("text/plain", "")}
    for kind in ("text/plain", "text/html"):
        if kind in data:
            data[kind] = data[kind].replace(folder, ".")
    return output


def _as_jpeg(png: str) -> str:
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    paper = Image.new("RGB", picture.size, "white")
    paper.paste(picture, mask=picture.getchannel("A") if picture.mode == "RGBA" else None)
    paper.thumbnail((WIDEST, 4 * WIDEST))
    raw = io.BytesIO()
    paper.save(raw, "JPEG", quality=80, optimize=True)
    return base64.b64encode(raw.getvalue()).decode()


def page(notebook: Any, name: str, folder: Path = PAGES) -> str:
    """The notebook as Markdown; pictures are written beside it."""
    parts, pictures = [], 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```py\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/jpeg" in data:
                pictures += 1
                file = f"{name}-{pictures}.jpg"
                (folder / file).write_bytes(base64.b64decode(data["image/jpeg"]))
                parts.append(f"![output of the code above]({file})")
            elif text := output.get("text") or data.get("text/markdown") or data.get("text/plain"):
                parts.append(f"```text\n{text.rstrip()}\n```")
    text = "\n\n".join(parts).replace("](../docs/", "](../")
    note = f"\n\n*The notebook itself, to run: `notebooks/{name}.ipynb` in the repository.*\n"
    return re.sub(r"(\A# [^\n]+)\n", rf"\1{note}", text, count=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", help="which, by their first letter; all if none is named")
    wanted = parser.parse_args().numbers
    PAGES.mkdir(exist_ok=True)
    for file in NOTEBOOKS:
        if not wanted or file.stem[0] in wanted:
            notebook = run(file)
            nbformat.write(notebook, file)
            (PAGES / f"{file.stem}.md").write_text(page(notebook, file.stem), encoding="utf-8")
            print(f"{file.stem}: {file.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main()
