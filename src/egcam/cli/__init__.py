"""The `egcam` command.

`main` lists the commands, which lie in `commands`, a module each; `options` and `inputs` turn words into what egcam
takes, `output` turns results into words and files. May use everything; nothing uses it.
"""

from egcam.cli.main import app, main

__all__ = ["app", "main"]
