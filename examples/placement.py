"""One program, three tasks: each operation runs on the device that its scope names.

    argosy run --serve --ps 1 --workers 2 examples/placement.py

or, with tasks that were started by hand (`argosy serve …`), give the address of any of them:

    python examples/placement.py localhost:2223
"""

from __future__ import annotations

import sys

import torch

import argosy


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else None
    with argosy.connect(target, log_device_placement=True, allow_soft_placement=False) as client:
        with argosy.device("/job:ps/task:0"):
            x = torch.ones(2, 2)  # made there, lives there
            y = torch.ones(2, 2)
        with argosy.device("/job:worker/task:0"):
            z = x @ y + x  # runs there; x and y travel from task to task, not through the client
        with argosy.device("/job:worker/task:1"):
            z = z @ x + x
        print(z.cpu())  # only this waits: tensor of 7s
        print(client.devices())  # /job:worker/task:0/cpu:0 …


if __name__ == "__main__":
    main()
