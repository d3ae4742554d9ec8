"""TensorFlow, one client: the MNIST step of `benchmarks/micro/remote.py` in a compat.v1 session, same
placement.

.venv-peers/bin/python -m benchmarks.contenders.tensorflow_session --out DIR
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contenders.job import milliseconds, write_whole

_SIZES = (784, 500, 500, 10)


def _free_address() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"localhost:{bound.getsockname()[1]}"


def _tensorflow() -> tuple[Any, Any]:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    import importlib

    tf: Any = importlib.import_module("tensorflow.compat.v1")
    tf.disable_eager_execution()
    return tf, tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def _serve(cluster: dict[str, list[str]], job: str) -> None:
    tf, config = _tensorflow()
    tf.train.Server(cluster, job_name=job, task_index=0, config=config).join()


def _measure(cluster: dict[str, list[str]], seconds: float) -> float:
    """Milliseconds a step."""
    tf, config = _tensorflow()
    import numpy as np

    images = tf.placeholder(tf.float32, (32, 784))
    labels = tf.placeholder(tf.int64, (32,))
    with tf.device("/job:ps/task:0"):
        layers = [
            (tf.Variable(tf.random.truncated_normal((a, b), stddev=0.05)), tf.Variable(tf.zeros((b,))))
            for a, b in pairwise(_SIZES)
        ]
    with tf.device("/job:worker/task:0"):
        hidden = images
        for index, (weight, bias) in enumerate(layers):
            hidden = tf.matmul(hidden, weight) + bias
            hidden = tf.nn.relu(hidden) if index < len(layers) - 1 else hidden
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden))
        optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
        gradients = optimizer.compute_gradients(loss, colocate_gradients_with_ops=True)
    train = optimizer.apply_gradients(gradients)
    feed = {images: np.random.randn(32, 784).astype("f"), labels: np.random.randint(0, 10, (32,))}
    with tf.Session(f"grpc://{cluster['ps'][0]}", config=config) as session:
        session.run(tf.global_variables_initializer())
        return milliseconds(lambda: session.run([train, loss], feed), 20, seconds)


def main() -> None:
    """Start a ps and a worker, and drive them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--serve", nargs=2, metavar=("CLUSTER", "JOB"))
    args = parser.parse_args()
    if args.serve:
        _serve(json.loads(args.serve[0]), args.serve[1])
        return
    cluster = {"ps": [_free_address()], "worker": [_free_address()]}
    program = [sys.executable, "-m", "benchmarks.contenders.tensorflow_session"]
    command = [*program, "--serve", json.dumps(cluster)]
    tasks = [subprocess.Popen([*command, job], stderr=subprocess.DEVNULL) for job in cluster]
    try:
        found = {"step": _measure(cluster, args.seconds)}
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    print(found)
    write_whole(args.out / "client.json", found)


if __name__ == "__main__":
    main()
