"""Argosy, as its README says: an ordinary loop and three lines. `argosy run` says who works with whom."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import argosy
from benchmarks.contenders.job import Recorder, read_job
from benchmarks.contenders.torch_model import Batches, build
from benchmarks.networks import LEARNING_RATE


def main() -> None:
    replica = argosy.join()
    job = read_job()
    torch.set_num_threads(1)
    model = build(job.network)
    optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True))
    versions = {"argosy": argosy.__version__, "torch": torch.__version__}
    recorder = Recorder(job, replica.index, replica.count, versions)
    with replica.session(model, optimizer) as session:
        for inputs, labels in session.batches(Batches(job.network, job.data, replica.index)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            if not recorder.step():
                break


if __name__ == "__main__":
    main()
