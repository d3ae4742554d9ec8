"""The list of planted bugs fits the tree: `make test-planted` plants them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bug import Bug
from bugs import BUGS
from planting import ROOT, plant

SOURCE = ROOT / "src" / "argosy"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug, tmp_path: Path) -> None:
    target = tmp_path / "src" / "argosy" / bug.file
    target.parent.mkdir(parents=True)
    target.write_text((SOURCE / bug.file).read_text())
    plant(bug, tmp_path)
    compile(target.read_text(), bug.file, "exec")
    assert target.read_text() != (SOURCE / bug.file).read_text()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tests_of_a_bug_are_there(bug: Bug) -> None:
    assert bug.tests
    for test in bug.tests:
        path, _, name = test.partition("::")
        assert (ROOT / "tests" / path).is_file()
        assert name.partition("[")[0] in (ROOT / "tests" / path).read_text()


def test_names_differ() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({(bug.file, bug.old, bug.new) for bug in BUGS}) == len(BUGS)
