"""What becomes of a group, and of its other ranks, when a call on it goes wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rings import in_group

from argosy.errors import ArgosyError, ConfigError, JobFailed
from argosy.ring.group import RingGroup
from argosy.ring.runner import Runner

WAITED_FOR = SimpleNamespace(asyncOp=False)


def test_a_call_that_is_interrupted_ends_the_group() -> None:
    def program(group: RingGroup) -> None:
        if group.rank == 1:
            group.barrier()
            with pytest.raises(JobFailed, match="task:0: KeyboardInterrupt"):
                group.barrier()
            return

        def interrupted() -> None:
            group.barrier()
            raise KeyboardInterrupt

        runner = Runner(group, ("the other",))
        with pytest.raises(KeyboardInterrupt):
            runner.run("barrier", interrupted, [], WAITED_FOR)
        for _ in range(2):
            with pytest.raises(ArgosyError, match="barrier was interrupted"):
                runner.run("barrier", group.barrier, [], None).wait()
        assert runner.close()

    in_group(2, program)


@pytest.mark.parametrize("opts", [WAITED_FOR, None])
def test_an_error_before_a_call_is_told_and_the_next_one_is_in_step(opts: object) -> None:
    def program(group: RingGroup) -> None:
        runner = Runner(group, ("the other",))

        def work() -> None:
            if group.rank == 0:
                raise ValueError("not these")
            group.barrier()

        for _ in range(3):
            with pytest.raises(ValueError if group.rank == 0 else ConfigError, match="not these"):
                runner.run("barrier", work, [], opts).wait()
            runner.run("barrier", group.barrier, [], opts).wait()
        assert runner.close()

    in_group(2, program)
