"""A visitor without a browser: speaks to the page's server as the page's own script does, or as an attacker would."""

from __future__ import annotations

import io
import json
import secrets
from typing import Any

import httpx
import numpy as np

API = "gradio_api"
EXPLAIN = ("slope-cam", None, 4, "usual")


class Visitor:
    """One session.

    Args:
        url: the page's address.
        patience: seconds to wait for an answer.
        password: sent with every request, as programs do.
    """

    def __init__(self, url: str, patience: float = 120.0, password: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.session = secrets.token_hex(8)
        self.http = httpx.Client(timeout=patience, trust_env=False, auth=None if password is None else ("", password))
        self.config: dict[str, Any] = self.http.get(f"{self.url}/config").json()
        self.actions = {one["api_name"]: one["id"] for one in self.config["dependencies"]}
        self.waits: list[int] = []

    def component(self, elem_id: str) -> dict[str, Any]:
        """What the page knows of a control."""
        return next(one["props"] for one in self.config["components"] if one["props"].get("elem_id") == elem_id)

    def at_once(self, name: str, data: list[Any]) -> list[Any]:
        """Call an action that does not wait in the queue."""
        body = {"data": data, "fn_index": self.actions[name], "session_hash": self.session}
        answer = self.http.post(f"{self.url}/{API}/run/{name}", json=body)
        answer.raise_for_status()
        return list(answer.json()["data"])

    def queued(self, name: str, data: list[Any]) -> dict[str, Any]:
        """Call an action that waits in the queue; the last message about it."""
        body = {"data": data, "fn_index": self.actions[name], "session_hash": self.session, "event_data": None}
        joined = self.http.post(f"{self.url}/{API}/queue/join", json=body)
        if joined.status_code != 200:
            return {"success": False, "output": {"error": joined.text}}
        event = joined.json()["event_id"]
        address = f"{self.url}/{API}/queue/data?session_hash={self.session}"
        with self.http.stream("GET", address) as messages:
            for line in messages.iter_lines():
                if not line.startswith("data:"):
                    continue
                message = json.loads(line[5:])
                if message.get("event_id") not in (None, event):
                    continue
                if message["msg"] == "estimation":
                    self.waits.append(message["rank"])
                if message["msg"] == "process_completed":
                    return dict(message)
        raise AssertionError(f"{name} was never completed")

    def run(self, name: str, *inputs: Any) -> list[Any]:
        """Begin an action and wait for its end: what it yielded last."""
        _, ticket, _ = self.at_once(f"begin_{name}", [None])
        return self.outputs(self.queued(name, [ticket, None, *inputs]))

    @staticmethod
    def outputs(message: dict[str, Any]) -> list[Any]:
        """What an action yielded; its error, where it ended in one."""
        if not message["success"]:
            return [message["output"].get("error")]
        return list(message["output"]["data"])

    def upload(self, content: bytes, name: str) -> httpx.Response:
        """Send a file."""
        return self.http.post(f"{self.url}/{API}/upload", files={"files": (name, content)})

    def open(self, content: bytes, name: str, choices: tuple[Any, ...] = EXPLAIN) -> list[Any]:
        """Upload an image and have it explained."""
        path = self.upload(content, name).json()[0]
        file = {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}
        return self.run("open_upload", file, *self.filled(choices))

    def filled(self, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        """Choices with the page's own layer where none is given."""
        method, layer, samples, reference = choices
        return method, layer or self.component("layer")["value"], samples, reference

    def explain(self, target: Any, choices: tuple[Any, ...] = EXPLAIN) -> list[Any]:
        """Explain a class of the image that is open."""
        return self.run("explain", None, target, *self.filled(choices))

    def maps(self, of: str = "explained") -> dict[str, Any]:
        """The raw maps of what was last explained, as downloaded."""
        output = self.outputs(self.queued(f"{of}_npz", [None, None]))
        file = self.http.get(output[1]["url"])
        file.raise_for_status()
        with np.load(io.BytesIO(file.content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def close(self) -> None:
        self.http.close()
