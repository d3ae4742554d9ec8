"""What each task of `argosy run --serve` runs: a named one serves its devices, the client runs the user's
script.

Started by the launcher as a script, with the user's script and its arguments behind it.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from argosy.cluster.settings import variable
from argosy.errors import ArgosyError, exit_code
from argosy.events import say


def main() -> None:
    """Serve, or be the client, as the environment says."""
    if os.environ.get(variable("job_name")):
        sys.exit(_serve())
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _serve() -> int:
    from argosy.server.serving_task import serve_devices

    try:
        serve_devices({})
    except (ArgosyError, OSError, KeyboardInterrupt) as error:
        if not isinstance(error, KeyboardInterrupt):
            say(f"error: {error}")
        return exit_code(error)
    return 0


if __name__ == "__main__":
    main()
