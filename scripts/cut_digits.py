"""Cut the digits that ship with Argosy from the full MNIST set: the first 10,000 to train, 2,000 to test.

    python scripts/cut_digits.py --data FOLDER_OF_THE_FULL_SET [--to FOLDER]

The same input gives the same digits, and the same bytes wherever zlib packs alike.
"""

from __future__ import annotations

import argparse
import gzip
import math
import struct
from pathlib import Path

from argosy.datasets import idx

SHIPPED = Path(__file__).resolve().parents[1] / "src" / "argosy" / "datasets" / "digits"
TRAIN, TEST = 10_000, 2_000
IMAGE = (28, 28)


def cut(source: Path, target: Path, count: int, item: tuple[int, ...] = ()) -> None:
    """Write the first `count` items, each of shape `item`; no timestamp, so a rerun changes nothing."""
    shape = (count, *item)
    _, data = idx.read(source, (None, *item))
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    target.write_bytes(gzip.compress(header + data[: math.prod(shape)], compresslevel=9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the full set")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="where to write the four files")
    args = parser.parse_args()
    full = idx.require_files(args.data)
    cut(full.train_images, args.to / "train-images-idx3-ubyte.gz", TRAIN, IMAGE)
    cut(full.train_labels, args.to / "train-labels-idx1-ubyte.gz", TRAIN)
    cut(full.test_images, args.to / "t10k-images-idx3-ubyte.gz", TEST, IMAGE)
    cut(full.test_labels, args.to / "t10k-labels-idx1-ubyte.gz", TEST)


if __name__ == "__main__":
    main()
