"""Bugs of the ring, of workers and their sessions, of the launcher and of remote devices."""

from __future__ import annotations

from bug import Bug

_FOUND = "differential/test_differential.py::test_what_was_once_wrong"
_STEPS = "replica/test_ring_steps.py::test"

RING_BUGS: tuple[Bug, ...] = (
    # --- the ring -------------------------------------------------------------------------------------------
    Bug(
        "sums of half precision are rounded before they travel between hosts",
        "ring/rounds.py",
        "return torch.float32 if len(company.hosts) > 1 and bucket.dtype in NARROW else bucket.dtype",
        "return bucket.dtype",
        ("ring/test_across_hosts.py::test_gradients_in_half_precision_are_summed_in_float32",),
    ),
    Bug(
        "who comes does not ring",
        "shared_memory/counters.py",
        "wanted % _KINDS, wanted // _KINDS, other) is None:\n                ring(self._bells[other])\n",
        "wanted % _KINDS, wanted // _KINDS, other) is None:\n                pass\n",
        ("ring/test_board.py",),
    ),
    Bug(
        "the mean of buffers is of those who give in this step",
        "ring/rounds.py",
        '        if rule == "mean":\n            return [rank',
        '        if rule != "first":\n            return [rank',
        (f"{_STEPS}_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips",),
    ),
    Bug(
        "buffers are brought a second time at the end of a step",
        "replica/averaging.py",
        "self._brings = self._gives and not ends",
        "self._brings = self._gives",
        (f"{_STEPS}_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips",),
    ),
    Bug(
        "what was brought is lost when a group joins",
        "replica/ring_exchange.py",
        "self._averaging.buffers.brought()",
        "NOTHING",
        (f"{_STEPS}_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips",),
    ),
    Bug(
        "a held pass keeps the mean of the buffers",
        "replica/averaging.py",
        "        self.buffers.take_back()\n",
        "",
        (f"{_STEPS}_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips",),
    ),
    Bug(
        "who has failed stays for the others",
        "replica/optimizer.py",
        "self._exchange.abandon()",
        "self._exchange.release()",
        (f"{_STEPS}_the_way_of_devices",),
    ),
    Bug(
        "a group joins without a word to who is in the middle of a step",
        "replica/ring_exchange.py",
        '        self._round(Says.HOLDS, "joins")  # on which all agree, or each hears what another does '
        "instead\n",
        "",
        (f"{_STEPS}_a_new_group_after_the_backward_pass_beside_a_skip_is_an_error_on_all",),
    ),
    Bug(
        "who has no gradient does not divide the mean",
        "replica/ring_exchange.py",
        "in_backward = self._in_backward or self._outcome is not None",
        "in_backward = self._outcome is not None",
        (f"{_FOUND}[ring: no gradient beside one that is divided-2]",),
    ),
    Bug(
        "who has no gradient is not in the round of an accumulation's first pass",
        "replica/ring_exchange.py",
        "            self._outcome = self._round(Says.GIVES)\n        self._waits = waits",
        "            pass\n        self._waits = waits",
        (f"{_FOUND}[ring: no gradient beside one that is divided-0]",),
    ),
    Bug(
        "a scaler looks at a held pass that is not averaged",
        "replica/ring_exchange.py",
        "self._waits = waits and not scaled",
        "self._waits = waits",
        (f"{_STEPS}_an_infinity_reaches_all_in_whichever_pass_it_is",),
    ),
    Bug(
        "a scaler looks at a pass after an accumulation that is not averaged",
        "replica/ring_exchange.py",
        "turn.passes > 1 and not turn.scaled and",
        "turn.passes > 1 and",
        (f"{_STEPS}_an_infinity_reaches_all_in_whichever_pass_it_is",),
    ),
    Bug(
        "passes of another loss scale are added as they are",
        "replica/optimizer.py",
        "            self._held.rescale(self._parameters(), scale)\n",
        "            pass\n",
        (f"{_FOUND}[a loss scale grows in the middle of an accumulation-0]",),
    ),
    Bug(
        "a mean is brought to another loss scale by what one worker has held",
        "replica/optimizer.py",
        "            self._exchange.hold(waits=False, scaled=True)",
        "            pass",
        (f"{_FOUND}[a loss scale grows in the middle of an accumulation-1]",),
    ),
    Bug(
        "the ring goes on with a loss scale of each worker's own",
        "session/session.py",
        "        if self.optimizer.resumed.chiefs:\n",
        "        if False:\n",
        (f"{_FOUND}[ring: goes on from loss scales that differ-1]",),
    ),
    Bug(
        "who has skipped expects other passes than the others",
        "replica/ring_exchange.py",
        "self._waits = turn.passes > 1 and not turn.scaled and outcome.complete",
        "self._waits = turn.passes > 1 and not turn.scaled",
        (
            f"{_FOUND}[ring: passes after a skip-0]",
            f"{_FOUND}[ring: a skip beside every, a scaler or clipping-4]",
            f"{_STEPS}_who_skips_steps_as_those_who_accumulate",
        ),
    ),
    Bug(
        "a failure is heard before what came ahead of it",
        "ring/board.py",
        "                if self.behind(kind, number, self.rank) is None:\n"
        "                    continue  # what is waited for came before that\n",
        "",
        ("ring/test_board.py",),
    ),
    # --- workers and their sessions -------------------------------------------------------------------------
    Bug(
        "what was sent ahead of a scaled loss counts",
        "replica/overlap.py",
        "if scale == 1.0 and self._members[block] <= same",
        "if self._members[block] <= same",
        ("differential/test_differential.py::test_a_scaled_loss_whose_gradients_are_sent_ahead",),
    ),
    Bug(
        "what was sent ahead of a skip counts for the next step",
        "replica/server_exchange.py",
        "        if self._overlap is not None:\n            self._overlap.reset()\n",
        "",
        ("replica/test_on_the_wire.py",),
    ),
    Bug(
        "a loader goes on elsewhere with another number of replicas",
        "replica/loader.py",
        "return batch * batch_size * count // (self.batch_size * self.count)",
        "return batch * batch_size // self.batch_size",
        ("session/test_loader.py::test_another_number_of_replicas_goes_on_at_the_same_place",),
    ),
    Bug(
        "the last numbers of a short session are not told",
        "session/reporting.py",
        "        self._last = True\n",
        "        self._last = False\n",
        ("session/test_ends.py", "session/test_reporting.py"),
    ),
    Bug(
        "an evaluator that is started after the end waits for more",
        "session/evaluation.py",
        "if over and (running or self._step):",
        "if over and running:",
        ("session/test_evaluation.py::test_it_evaluates_what_is_there_and_leaves",),
    ),
    Bug(
        "a killed server is not the first cause",
        "launch/cause.py",
        'int(failure.died and failure.task.job == "worker")',
        "int(failure.died)",
        ("launch/test_cause.py",),
    ),
    Bug(
        "an empty parameter has its neighbour's count",
        "protocol/layout.py",
        "                if start == stop:  # its",
        "                if start > stop:  # its",
        (f"{_FOUND}[the state of an empty parameter-1]",),
    ),
    # --- remote devices -------------------------------------------------------------------------------------
    Bug(
        "a captured step leaves the gradients of its other recordings",
        "remote/client/capture.py",
        "        self._gradients.used.append(UsedGradient(leaf, -1, None))\n",
        "        del leaf\n",
        (f"{_FOUND}[remote: gradients of an earlier recording-1]",),
    ),
    Bug(
        "a backward pass is to make gradients that nobody asks for",
        "remote/client/shape_inference.py",
        '    if "output_mask" not in names:\n',
        "    if names:\n",
        (f"{_FOUND}[remote: normalised data-0]",),
    ),
)
