"""Longest paths of many samples at once, whose times are drawn on the way.

Random numbers come from a counter: a function of the key of what varies and the word of a sample,
so that they depend neither on the order of nodes nor on how many samples are evaluated at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from debubble.engine.jit import HELPER, Array, kernel

LANES = 8
"""Samples evaluated at once: a constant, so that the inner loop is unrolled."""

INDEX_BITS = 12
"""Bits of a random word that choose a quantile."""

_DROPPED = 32 - INDEX_BITS
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_ALL = 0xFFFFFFFF


def mixed(x: Any) -> Any:
    """Return a mixed word of 32 bits, each of which depends on all bits of the given one."""
    x ^= x >> 16
    x = x * _FIRST & _ALL
    x ^= x >> 15
    x = x * _SECOND & _ALL
    return x ^ x >> 16


def quantile_index(key: int, word: int) -> int:
    """Return the index of a sample's quantile, from a hash of its key and word."""
    index: int = mixed(key ^ word) >> _DROPPED
    return index


def _index_of_words(key: Any, word: Any) -> Any:
    # In words of 32 bits, eight of which a processor multiplies at once.
    x = np.uint32(key ^ word)
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(_FIRST))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(_SECOND))
    x = np.uint32(x ^ np.uint32(x >> np.uint32(16)))
    return np.uint32(x >> np.uint32(_DROPPED))


setattr(quantile_index, HELPER, _index_of_words)


@kernel(writes=("last",))
def evaluate_samples(
    first: Array,
    second: Array,
    delays: Array,
    fixed: Array,
    begin: Array,
    parts: Array,
    keys: Array,
    words: Array,
    quantiles: Array,
    end: Array,
    last: Array,
) -> None:
    """Makespans of LANES samples.

    ``fixed[n]`` is what node n takes in all of them. ``parts[i]``, for i in
    ``begin[n]:begin[n + 1]``, is what varies of it: a sample takes that times its quantile of
    ``keys[i]``. ``delays[n]`` comes before the node for its second predecessor. ``words`` has one
    word for each sample.
    """
    for k in range(LANES):
        end[0, k] = 0.0
        last[k] = 0.0
    for n in range(1, len(first)):
        a = first[n]
        b = second[n]
        delay = delays[n]
        time = fixed[n]
        for k in range(LANES):
            end[n, k] = max(end[a, k], end[b, k] + delay) + time
        for part in range(begin[n], begin[n + 1]):
            key = keys[part]
            time = parts[part]
            for k in range(LANES):
                end[n, k] += time * quantiles[quantile_index(key, words[k])]
        for k in range(LANES):
            last[k] = max(last[k], end[n, k])
