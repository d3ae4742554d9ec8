"""torch's own distributed tests (`torch.testing._internal.distributed.distributed_test`) on a backend.

Started by test_torch_suite.py: `python torch_suite.py BACKEND FOLDER [TEST ...]`. The tests choose what to do
by the name "gloo", so that the same ones run for every backend; only the groups are made with BACKEND. A line
of JSON for each test says how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from typing import Any

RANKS = 3
SECONDS = 60  # for each test


def load(backend: str, folder: str) -> Any:
    """The class of the tests, with ranks that are forked: they need not import torch again."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), OMP_NUM_THREADS="1")
    os.environ.update(TEMP_DIR=folder, INIT_METHOD=f"file://{folder}/meeting")
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    import argosy.ring  # noqa: F401  (makes the backend known)

    make = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda **words: make(**words | {"backend": backend})
    common_distributed.TIMEOUT_DEFAULT = SECONDS
    common_distributed.TIMEOUT_OVERRIDE.clear()

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()  # type: ignore[no-untyped-call]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Tests


class Result(unittest.TestResult):
    """Tells how each test ended, as soon as it has."""

    began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.began = time.monotonic()

    def _tell(self, test: Any, how: str, why: str = "") -> None:
        name = test.id().rpartition(".")[2]
        seconds = round(time.monotonic() - self.began, 1)
        print(json.dumps({"test": name, "how": how, "seconds": seconds, "why": why}), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._tell(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._tell(test, "failed", str(err[1]))

    addFailure = addError  # noqa: N815


def main() -> None:
    backend, folder, *chosen = sys.argv[1:]
    tests = load(backend, folder)
    names = chosen or unittest.defaultTestLoader.getTestCaseNames(tests)
    unittest.TestSuite(tests(name) for name in names).run(Result())


if __name__ == "__main__":
    main()
