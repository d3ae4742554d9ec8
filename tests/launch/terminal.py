"""A terminal that remembers its lines: as much of one as the launcher's view needs."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(\d*)[;\d]*([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Terminal:
    """Feed it text; `lines` is what a person sees, colours left out."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0
        self._rest = ""

    def feed(self, data: str) -> None:
        """Show more; an escape that is cut in two waits for its end."""
        data = self._rest + data
        cut = data.rfind("\x1b")
        whole = cut < 0 or re.match(r"\x1b\[[\d;]*[A-Za-z]", data[cut:])
        self._rest = "" if whole else data[cut:]
        for token in _TOKEN.finditer(data if whole else data[:cut]):
            self._show(token)

    def _show(self, token: re.Match[str]) -> None:
        text = token[0]
        if text == "\r":
            self._column = 0
        elif text == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif not text.startswith("\x1b"):
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
            self._column += len(text)
        elif token[2] == "A":
            self._row = max(0, self._row - int(token[1] or 1))
        elif token[2] in "JK":
            self.lines[self._row] = self.lines[self._row][: self._column]
            if token[2] == "J":
                del self.lines[self._row + 1 :]
        else:
            assert token[2] == "m", text
