"""TensorFlow's parameter servers, as its v1 guide builds them.

replica_device_setter, MonitoredTrainingSession, and SyncReplicasOptimizer for the synchronous mode.

Tuned: device filters keep workers from talking to each other, one thread an operation and a process, no
checkpoints or summaries. The setter places variables in turns, its default; "-greedy" places them by size, by
a strategy written here, since the one that its documentation names went away with tf.contrib.
Trains on until the harness ends it: the servers never end by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.job import Job, Recorder, end_with_parent, read_job
from benchmarks.networks import LEARNING_RATE, Network

tensorflow: Any = import_module("tensorflow")
tf: Any = tensorflow.compat.v1
SERVERS, WORKERS = 2, 2


def greedy(servers: int) -> Callable[[Any], int]:
    """Each variable to the server with the least so far, as contrib's GreedyLoadBalancingStrategy did."""
    loads = [0] * servers

    def choose(operation: Any) -> int:
        least = loads.index(min(loads))
        loads[least] += int(operation.outputs[0].get_shape().num_elements() or 1)
        return least

    return choose


def batches(network: Network, data: Path, seed: int) -> tuple[Any, Any]:
    """The next batch, as tensors: shuffled numbers come from tf.data, rows from memory by one gather, as the
    PyTorch contenders do it. Nothing passes through Python in a step."""
    inputs = np.fromfile(data / f"{network.name}.inputs", np.float32)
    inputs = inputs.reshape(network.examples, *network.example)
    if network.channels:
        inputs = np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))  # the layout of TensorFlow's CPU kernels
    labels = np.fromfile(data / f"{network.name}.labels", np.int64)
    rows = np.random.default_rng(seed).permutation(network.examples)
    rows = rows[: len(rows) // network.batch * network.batch].reshape(-1, network.batch)
    numbers = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=seed).repeat().prefetch(8)
    numbers = tf.data.make_one_shot_iterator(numbers).get_next()
    return tf.gather(tf.constant(inputs), numbers), tf.gather(tf.constant(labels), numbers)


def logits(network: Network, inputs: Any) -> Any:
    """The network on plain variables."""
    values = inputs
    for number, (fan_in, fan_out) in enumerate(pairwise(network.channels)):
        kernel = _weights(f"kernel{number}", (3, 3, fan_in, fan_out), 9 * fan_in)
        bias = tf.get_variable(f"kernel_bias{number}", (fan_out,), initializer=tf.zeros_initializer())
        values = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(values, kernel, 1, "SAME"), bias))
        values = tf.nn.max_pool2d(values, 2, 2, "VALID")
    if network.channels:
        values = tf.reshape(values, (network.batch, network.layers[0]))
    for number, (fan_in, fan_out) in enumerate(pairwise(network.layers)):
        values = tf.matmul(values, _weights(f"weights{number}", (fan_in, fan_out), fan_in))
        if not network.bare:
            bias = tf.get_variable(f"bias{number}", (fan_out,), initializer=tf.zeros_initializer())
            values = tf.nn.bias_add(values, bias)
        if number < len(network.layers) - 2:
            values = tf.nn.relu(values)
    return values


def _weights(name: str, shape: tuple[int, ...], fan_in: int) -> Any:
    bound = fan_in**-0.5
    return tf.get_variable(name, shape, initializer=tf.random_uniform_initializer(-bound, bound, seed=0))


def train(job: Job, server: Any, cluster: Any, config: Any) -> None:
    """A worker's loop."""
    worker = f"/job:worker/task:{job.index}"
    with tf.device(f"{worker}/cpu:0"):
        inputs, labels = batches(job.network, job.data, job.index)
    mode, _, placement = job.mode.partition("-")
    strategy = greedy(SERVERS) if placement == "greedy" else None
    setter = tf.train.replica_device_setter(worker_device=worker, cluster=cluster, ps_strategy=strategy)
    hooks = []
    with tf.device(setter):
        step = tf.train.get_or_create_global_step()
        outputs = logits(job.network, inputs)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs))
        optimizer = tf.train.AdamOptimizer(LEARNING_RATE)
        if mode == "sync":
            optimizer = tf.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=WORKERS, total_num_replicas=WORKERS
            )
            hooks.append(optimizer.make_session_run_hook(job.index == 0))
        update = optimizer.minimize(loss, global_step=step)
    recorder = Recorder(job, job.index, WORKERS, {"tensorflow": str(tensorflow.__version__)})
    ready = job.out / "chief-ready"
    while job.index > 0 and not ready.exists():
        time.sleep(0.05)  # a session that finds no variables yet would look again after 30 s only
    with tf.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=job.index == 0,
        hooks=hooks,
        config=config,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    ) as session:
        ready.touch()
        while True:
            session.run(update)
            recorder.step()


def main() -> None:
    end_with_parent()
    job = read_job()
    tf.disable_v2_behavior()
    addresses = [f"127.0.0.1:{port}" for port in job.ports]
    cluster = tf.train.ClusterSpec({"ps": addresses[:SERVERS], "worker": addresses[SERVERS:]})
    name = "ps" if job.role == "server" else "worker"
    filters = ["/job:ps", f"/job:worker/task:{job.index}"] if name == "worker" else []
    config = tf.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, device_filters=filters
    )
    server = tf.train.Server(cluster, job_name=name, task_index=job.index, protocol="grpc", config=config)
    if name == "ps":
        server.join()
    train(job, server, cluster, config)


if __name__ == "__main__":
    main()
