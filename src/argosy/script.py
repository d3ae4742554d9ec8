"""Where in the user's script a call was made. A leaf that any part may import."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parent)


def calling_line() -> str:
    """`train.py:31`: the innermost line on the stack that is neither ours nor an installed package's."""
    here: FrameType | None = sys._getframe(1)
    line = ""
    while here is not None:
        file = here.f_code.co_filename
        line = f"{Path(file).name}:{here.f_lineno}"
        if not file.startswith((_OURS, "<")) and "site-packages" not in file:
            return line
        here = here.f_back
    return line
