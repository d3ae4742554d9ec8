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


def main() -> None:
    """Serve, or be the client, as the environment says."""
    if os.environ.get(variable("job_name")):
        from argosy.cli import main as run_command

        sys.exit(run_command(["serve"]))
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
