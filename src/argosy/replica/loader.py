"""`replica.loader(...)`: every replica's own share of a dataset, reshuffled each epoch, and resumable."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar, cast

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from argosy.errors import ConfigError

T = TypeVar("T")


class Loader(Generic[T]):
    """Batches of this replica's share of a dataset.

    In each epoch all replicas draw the same order from `seed`, and each takes every count-th sample of it: no
    sample is seen twice in an epoch, and another number of replicas only deals the same cards to more hands.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int,
        seed: int,
        index: int,
        count: int,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise ConfigError("batch_size", "a number of samples, 1 or more", batch_size)
        if not isinstance(dataset, Sized) or not len(dataset):
            got = f"{type(dataset).__name__} of length 0" if isinstance(dataset, Sized) else type(dataset)
            raise ConfigError("dataset", "a dataset with a length, and at least one sample", got)
        self.dataset = dataset
        self.batch_size = batch_size
        self.count = count
        self._seed = seed
        self._index = index
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._options = options
        self._epoch = 0

    def __len__(self) -> int:
        share = len(range(self._index, len(cast(Sized, self.dataset)), self.count))
        return share // self.batch_size if self._drop_last else -(-share // self.batch_size)

    def __iter__(self) -> Iterator[T]:
        """The next epoch: 0, 1, ..."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self.iterate(epoch, 0)

    def iterate(self, epoch: int, first: int) -> Iterator[T]:
        """The batches of an epoch from number `first` on."""
        self._epoch = epoch + 1
        batches = self._batches(epoch)[first:]
        dataset: object = self.dataset
        if isinstance(dataset, TensorDataset) and not self._options:
            # Indexing the tensors gives what collating single samples gives, many times faster.
            tensors = dataset.tensors
            return (cast(T, [tensor[batch] for tensor in tensors]) for batch in batches)
        # torch draws a seed for its processes from this generator, and leaves the user's alone.
        generator = torch.Generator().manual_seed(_mixed(self._seed, epoch, self._index))
        options = {"generator": generator, **self._options}
        return iter(DataLoader(self.dataset, batch_sampler=[b.tolist() for b in batches], **options))

    def _batches(self, epoch: int) -> Sequence[torch.Tensor]:
        size = len(cast(Sized, self.dataset))
        if self._shuffle:
            generator = torch.Generator().manual_seed(_mixed(self._seed, epoch))
            order = torch.randperm(size, generator=generator)
        else:
            order = torch.arange(size)
        share: tuple[torch.Tensor, ...] = order[self._index :: self.count].split(self.batch_size)
        return share[: len(self)]

    def locate(self, batch: int, batch_size: int, count: int) -> int:
        """Where `batch` batches of this size on so many replicas end, in batches of this loader."""
        return batch * batch_size * count // (self.batch_size * self.count)


def _mixed(*numbers: int) -> int:
    return random.Random("/".join(map(str, numbers))).getrandbits(63)
