"""Plants each bug of `bugs` in a copy of the tree, one after the other, and sees that a test notices.

python tests/planted/planting.py              # all of them; `make test-planted`
python tests/planted/planting.py ring wire    # those whose file or name has one of these words
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bug import Bug
from bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "examples", "scripts", "benchmarks", "docs")
FILES = ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt")
# Further cases of faults take minutes, which would be taken for a hang, and so for a bug that was noticed.
_WHICH = "not slow and not faults"
# A bug may well make a test hang: that is noticed as well. All tests of a bug take less than half of this.
PATIENCE = 300.0
# What pytest says when it ran nothing: a test that is not there, or only such as are left out.
_NOTHING_WAS_RUN = (4, 5)
# All files of tests one after the other, without a bug.
_PATIENCE_WITH_ALL = 3600.0


def copy_tree(target: Path) -> None:
    """All that tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "results")
    for name in COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def plant(bug: Bug, root: Path) -> str:
    """Change the file; what was in it."""
    path = root / "src" / "argosy" / bug.file
    before = path.read_text()
    if before.count(bug.old) != 1:
        raise ValueError(
            f"{bug.name}: expected its text once in {bug.file}, got {before.count(bug.old)} times"
        )
    path.write_text(before.replace(bug.old, bug.new))
    return before


def passes(root: Path, tests: Sequence[str], patience: float = PATIENCE) -> tuple[bool, str]:
    """Whether these tests pass in a copy, in one process; and which one failed first."""
    # Compiled files are told apart by size and second: none may stay from before a bug was planted.
    environ = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-m", _WHICH, "--timeout=60", "--tb=no"]
    command += [f"tests/{test}" for test in tests]
    # A session of its own: a test that signals its group must not reach us, and what hangs ends as a whole.
    process = subprocess.Popen(
        command,
        cwd=root,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return False, "a test that hangs"
    finally:
        if process.poll() is None:  # also if we are interrupted: in its own session it would stay
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode in _NOTHING_WAS_RUN:
        raise ValueError(f"{', '.join(tests)}: expected tests to run, got none:\n{output}")
    lines = output.splitlines()
    first = next((line.split(" ")[1] for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    return process.returncode == 0, first.removeprefix("tests/") or "\n".join(lines[-3:])


def noticed(root: Path, bugs: Sequence[Bug]) -> Iterator[tuple[Bug, bool, str, float]]:
    """Each bug, whether a test noticed it, which, and after how many seconds."""
    for bug in bugs:
        began = time.monotonic()
        before = plant(bug, root)
        try:
            fine, first = passes(root, bug.tests)
        finally:
            (root / "src" / "argosy" / bug.file).write_text(before)
        yield bug, not fine, first, time.monotonic() - began


def main(words: Sequence[str]) -> int:
    """Print a table; fails if a bug is not noticed, or a test fails without one."""
    bugs = [bug for bug in BUGS if not words or any(word in f"{bug.file} {bug.name}" for word in words)]
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder) / "tree"
        root.mkdir()
        copy_tree(root)
        tests = sorted({test for bug in bugs for test in bug.tests})
        fine, first = passes(root, tests, _PATIENCE_WITH_ALL)
        if not fine:
            print(f"without any bug a test fails: {first}")
            return 1
        print(f"{len(bugs)} bugs; {len(tests)} files of tests pass without any", flush=True)
        count = 0
        for bug, seen, where, seconds in noticed(root, bugs):
            count += seen
            told = where if seen else "NOT NOTICED"
            print(f"{bug.file:26} {bug.name:60} {seconds:5.1f} s  {told}", flush=True)
    share = 100 * count / max(1, len(bugs))
    print(f"{count} of {len(bugs)} noticed, {share:.0f} %")
    return 0 if count == len(bugs) else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(sys.argv[1:]))
