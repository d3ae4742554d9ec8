"""The limit: plain PyTorch with fused Adam, alone. Several of these at once show what the cores share."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.contenders.job import Recorder, end_with_parent, read_job
from benchmarks.contenders.torch_model import Batches, build
from benchmarks.networks import LEARNING_RATE


def main() -> None:
    end_with_parent()
    job = read_job()
    torch.set_num_threads(1)
    model = build(job.network)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    recorder = Recorder(job, job.index, job.count, {"torch": torch.__version__})
    for inputs, labels in Batches(job.network, job.data, job.index).forever():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if not recorder.step():
            break


if __name__ == "__main__":
    main()
