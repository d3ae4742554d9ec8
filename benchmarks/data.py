"""The training data as raw files, written once by the harness and read by every contender's framework."""

from __future__ import annotations

import gzip
from pathlib import Path

import torch

from benchmarks.networks import NETWORKS, Network

ROOT = Path(__file__).resolve().parent.parent
CIFAR = ROOT.parent / "shared" / "data" / "cifar10" / "data_batch_1.bin.gz"
_RECORD = 1 + 3 * 32 * 32  # a label and an image


def prepare(directory: Path, names: list[str]) -> None:
    """Write NAME.inputs (float32) and NAME.labels (int64) for each network."""
    for name in names:
        inputs, labels = _examples(NETWORKS[name])
        for tensor, kind in ((inputs.float(), "inputs"), (labels.long(), "labels")):
            raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            (directory / f"{name}.{kind}").write_bytes(raw)


def _examples(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
    if network.name == "mnist":
        from argosy.datasets import mnist

        digits = mnist.load()
        return digits.train_images, digits.train_labels
    if network.name == "conv" and CIFAR.exists():
        records = torch.frombuffer(bytearray(gzip.decompress(CIFAR.read_bytes())), dtype=torch.uint8)
        records = records.view(-1, _RECORD)[: network.examples]
        return records[:, 1:].float().div_(255), records[:, 0]
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(network.examples, *network.example, generator=generator)
    return inputs, torch.randint(network.classes, (network.examples,), generator=generator)
