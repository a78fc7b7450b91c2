"""Buckets, shared memory and the trainer's side of a publish."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.trainer.publisher import Publisher
from openclaw_core.trainer.sender import Sender
from openclaw_core.weights.checksum import checksum
from openclaw_core.weights.errors import PublishError, WeightsError
from openclaw_core.weights.packed import Packed
from openclaw_core.weights.publish import PublishedWeights, cut
from openclaw_core.weights.shared import Entry, Segment, SharedWeights

SHAPES = {"embed": (6, 4), "norm": (4,), "q": (3, 5)}


def weights(seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def publisher(bucket_bytes: int = 2**20, dtype: torch.dtype = torch.bfloat16) -> Publisher:
    return Publisher(SHAPES, dtype, bucket_bytes, Sender("127.0.0.1", "cpu", 1))


# ---- buckets


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.sampled_from([torch.bfloat16, torch.float32]))),
    st.integers(1, 300),
)
def test_buckets_hold_every_tensor_once_in_order_and_only_a_lone_one_is_too_large(
    tensors: list[tuple[list[int], torch.dtype]], limit: int
) -> None:
    entries = [Entry(f"w{i}", dtype, tuple(shape), 0) for i, (shape, dtype) in enumerate(tensors)]
    buckets = cut(entries, limit)
    sizes = [
        [torch.Size(shape).numel() * getattr(torch, dtype).itemsize for dtype, shape in zip(b.dtypes, b.shapes, strict=True)]
        for b in buckets
    ]

    assert [name for bucket in buckets for name in bucket.names] == [entry.name for entry in entries]
    assert [size for bucket in sizes for size in bucket] == [entry.bytes for entry in entries]
    assert all(sum(bucket) <= limit or len(bucket) == 1 for bucket in sizes)
    # No bucket is cut before it is full.
    assert all(sum(bucket) + following[0] > limit for bucket, following in itertools.pairwise(sizes))


# ---- shared memory


def test_each_version_replaces_the_last_in_the_same_memory() -> None:
    segment = Segment(SHAPES, torch.bfloat16)
    references: list[SharedWeights] = []
    for seed in (1, 2):
        assert segment.begin()
        for name, tensor in weights(seed).items():
            segment.tensors[name].copy_(tensor)
        references.append(segment.end(seed))
        with references[-1].reading() as read:
            assert {name: tensor.dtype for name, tensor in read.items()} == dict.fromkeys(SHAPES, torch.bfloat16)
            assert all(torch.equal(read[name], tensor) for name, tensor in weights(seed).items())
            assert not segment.begin()  # not while it is read

    assert references[0].path == references[1].path
    with pytest.raises(WeightsError, match=r"were publication 1 .* holds 2 now"), references[0].reading():
        pass
    assert segment.begin()
    with pytest.raises(WeightsError, match=r"were publication 2 .* holds another one, half written"), references[1].reading():
        pass


def test_what_is_out_of_reach_is_said_and_nothing_else_is_read_in_its_place() -> None:
    segment = Segment(SHAPES, torch.bfloat16)
    reference = segment.end(1)
    read, write = os.pipe()
    for other in (
        replace(reference, nonce=b"0" * 16, pid=2**22 + 1),
        replace(reference, nonce=b"1" * 16, descriptor=read),
        replace(reference, nonce=b"2" * 16),
    ):
        assert not other.reachable()
        reason = r"lie in the memory of process \d+ on .* cannot read /proc/.* same container"
        with pytest.raises(WeightsError, match=reason), other.reading():
            pass
    assert reference.reachable()
    os.close(read)
    os.close(write)


def test_memory_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(WeightsError, match=r"cannot set aside \d+ MiB of shared memory .* memory limit"):
        Segment({"w": (2**50,)}, torch.bfloat16)


CHILD = """
import sys, time, torch
from openclaw_core.weights.shared import Segment
segment = Segment({"w": (2**20,)}, torch.bfloat16)
segment.tensors["w"].fill_(3)
reference = segment.end(1)
print(reference.pid, reference.descriptor, reference.nonce.hex(), reference.size, flush=True)
time.sleep(100)
"""


def test_the_memory_of_a_killed_writer_goes_with_its_last_reader() -> None:
    before = shared_memory()
    writer = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    pid, descriptor, nonce, size = writer.stdout.readline().split()
    entry = Entry("w", torch.bfloat16, (2**20,), 4096)
    reference = SharedWeights("here", int(pid), int(descriptor), bytes.fromhex(nonce), int(size), 1, Packed.of((entry,)))
    with reference.reading() as read:
        assert shared_memory() == before
        writer.kill()
        writer.wait()
        assert bool((read["w"] == 3).all())  # who reads it keeps it
    with pytest.raises(WeightsError, match="cannot read"), reference.reading():
        pass


def shared_memory() -> list[str]:
    return sorted(os.listdir("/dev/shm"))  # noqa: PTH208


# ---- the trainer's side


def test_two_publications_have_the_checksums_of_their_weights() -> None:
    ours = publisher(bucket_bytes=60)
    first, second = (ours.publish(weights(seed).items()) for seed in (1, 2))

    assert (first.checksum, second.checksum) == (checksum(weights(1).items()), checksum(weights(2).items()))
    assert first.checksum != second.checksum
    assert [bucket.names for bucket in second.buckets.value] == [("embed", "norm"), ("q",)]
    with ours.sending(2) as tensors:
        assert checksum(tensors.items()) == second.checksum
    with pytest.raises(PublishError, match="publication 1 is not there any more: the trainer has 2"):
        ours.send("engine", first.reference.generation, 0)
    with pytest.raises(PublishError, match="there is no bucket 2, but 2 from 0 on"):
        ours.send("engine", second.reference.generation, 2)
    with pytest.raises(PublishError, match="there is no group 'engine'; open are: none"):
        ours.send("engine", second.reference.generation, 1)


@pytest.mark.parametrize("piece", [1, 7, 24, 2**20])
def test_tensors_may_come_as_views_of_a_fused_matrix(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_core.weights.checksum.PIECE", piece)
    fused = torch.randn(3, 4, 5, dtype=torch.bfloat16)  # [groups, rows of both, h]
    whole = {"q": fused[:, :3].flatten(0, 1), "k": fused[:, 3:].flatten(0, 1)}
    ours = Publisher({"q": (9, 5), "k": (3, 5)}, torch.bfloat16, 2**20, Sender("127.0.0.1", "cpu", 1))
    made = ours.publish([("q", fused[:, :3]), ("k", fused[:, 3:])])
    assert made.checksum == checksum(whole.items())
    with made.reference.reading() as read:
        assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())


def test_what_is_being_read_or_sent_is_not_overwritten() -> None:
    ours = publisher()
    first = ours.publish(weights(1).items())
    with first.reference.reading() as read:
        second = ours.publish(weights(2).items())
        assert checksum(read.items()) == first.checksum
    with ours.sending(2) as sent:
        third = ours.publish(weights(3).items())
        assert checksum(sent.items()) == second.checksum
    # What nobody reads is used again.
    assert first.reference.nonce == third.reference.nonce != second.reference.nonce
    with pytest.raises(WeightsError, match="holds 3 now"), first.reference.reading():
        pass
    with second.reference.reading() as old, third.reference.reading() as new:
        fourth = ours.publish(weights(4).items())
        assert (checksum(old.items()), checksum(new.items())) == (second.checksum, third.checksum)
    assert fourth.reference.nonce not in (second.reference.nonce, third.reference.nonce)
    with fourth.reference.reading() as read:
        assert checksum(read.items()) == fourth.checksum


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra": torch.ones(1, dtype=torch.bfloat16)}, r"extra \[1\] torch\.bfloat16"),
        ({"q": torch.ones(5, 3, dtype=torch.bfloat16)}, r"q, q \[5, 3\] torch\.bfloat16"),
        ({"q": torch.ones(3, 5)}, r"q, q \[3, 5\] torch\.float32"),
    ],
)
def test_weights_of_another_model_are_refused(change: dict[str, torch.Tensor], named: str) -> None:
    with pytest.raises(PublishError, match=named):
        publisher().publish((weights(1) | change).items())


# ---- groups without a member


@pytest.fixture
def default_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("default_group")
def test_a_group_whose_members_do_not_come_is_an_error_that_names_it() -> None:
    sender = Sender("127.0.0.1", "cpu", 1)
    address = sender.open("engine-3", 3, "gloo")
    started = time.monotonic()
    assert sender.open("engine-3", 3, "gloo") == address
    for call in (lambda: sender.joined("engine-3"), lambda: sender.send("engine-3", [torch.ones(1)], "bucket 0 of 1")):
        with pytest.raises(
            PublishError, match=rf"group 'engine-3': 2 peers did not all join at 127\.0\.0\.1:{address[1]} within train.coll"
        ):
            call()
    assert time.monotonic() - started < 60  # by its deadline, not by torch's half an hour
    assert sender.open("engine-3", 3, "gloo") != address
    sender.close("engine-3")
    with pytest.raises(PublishError, match="there is no group 'engine-3'"):
        sender.joined("engine-3")
    for thread in threading.enumerate():  # torch aborts a process that ends while one of its own still waits
        if thread.name == "join engine-3":
            thread.join(60)


@pytest.mark.parametrize(
    ("name", "world_size", "backend", "reason"),
    [
        ("", 2, "gloo", "needs a name, and a receiver"),
        ("engine", 1, "gloo", "needs a name, and a receiver"),
        ("engine", 2, "pigeon", "this trainer's torch has no backend 'pigeon'"),
    ],
)
def test_a_group_that_cannot_be_is_refused(name: str, world_size: int, backend: str, reason: str) -> None:
    with pytest.raises(PublishError, match=reason):
        Sender("127.0.0.1", "cpu", 1).open(name, world_size, backend)


async def test_weights_without_a_trainer_can_only_be_read_here() -> None:
    with pytest.raises(PublishError, match="have no trainer behind them"):
        await PublishedWeights("0", [{}]).elsewhere()
