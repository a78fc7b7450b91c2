"""The store of keys and values: the longest common beginning is found, the least recently used leaves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from openclaw_core.engines.prefixes import PrefixStore

Ids = tuple[int, ...]
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


def keys_values(ids: Ids) -> Tensor:
    """In place of keys and values: each token's id."""
    return torch.tensor(ids, dtype=torch.float32).reshape(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1)


def put(store: PrefixStore, ids: Ids) -> None:
    store.put(ids, lambda: keys_values(ids))


def longest(store: PrefixStore, ids: Ids) -> Ids:
    found = store.longest(ids)
    return () if found is None else tuple(int(token) for token in found[0, 0, 0, :, 0])


def common(one: Ids, other: Ids) -> Ids:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]


@given(st.lists(sequences, max_size=12), sequences)
def test_the_longest_common_beginning_is_found(held: list[Ids], asked: Ids) -> None:
    store = PrefixStore(1000)
    for ids in held:
        put(store, ids)
    assert longest(store, asked) == max((common(asked[:-1], ids) for ids in held), key=len, default=())


@given(st.lists(sequences, max_size=30), st.integers(0, 20))
def test_it_never_holds_more_than_it_may(held: list[Ids], capacity: int) -> None:
    store = PrefixStore(capacity)
    for ids in held:
        put(store, ids)
        assert store.tokens <= capacity
        if len(ids) <= capacity:
            assert longest(store, (*ids, 0)) == ids


def test_the_least_recently_used_leaves() -> None:
    store = PrefixStore(9)
    for first in (1, 2, 3):
        put(store, (first, 0, 0))
    assert longest(store, (1, 0, 5)) == (1, 0)
    put(store, (4, 0, 0))
    assert [longest(store, (first, 0, 0, 0)) for first in (1, 2, 3, 4)] == [(1, 0, 0), (), (3, 0, 0), (4, 0, 0)]


def test_a_longer_sequence_takes_the_place_of_its_beginning() -> None:
    store = PrefixStore(100)
    put(store, (1, 2))
    put(store, (1, 2, 3, 4))
    assert (store.tokens, longest(store, (1, 2, 3, 4, 5))) == (4, (1, 2, 3, 4))


def test_what_is_held_already_is_not_read_again() -> None:
    store = PrefixStore(100)
    put(store, (1, 2, 3))
    store.put((1, 2), lambda: pytest.fail("read"))
    assert store.tokens == 3


def test_nothing_is_left_after_clear() -> None:
    store = PrefixStore(100)
    put(store, (1, 2, 3))
    store.clear()
    assert (store.tokens, longest(store, (1, 2, 3, 4))) == (0, ())
