"""Damage to inputs: of their words, of the tree that JSON or YAML is, of tables, and of bytes."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 0.5, -0.0, 1e-320, 1e308, -1e308, float("inf"),
    float("nan"), 1 << 31, 1 << 53, 1 << 63, 1 << 64, 10**400, "", " ", "x", "1", "-1", "nan",
    "1e999", "٣", "\x00", "\n", "\ud800", "é" * 40, "a" * 3000, "0F0", "1f1b", "h100", [], {}, [[]],
    [None], [0], [1, 2], {"a": 1}, {"": {}}, [[0, 1], [1]],
)  # fmt: skip
"""What stands where something else was expected."""

WORDS = (
    b"", b" ", b"-1", b"0", b"1", b"7", b"1048575", b"99999999999", b"9" * 30, b"9" * 4400,
    b"1e309", b"1e-400", b"nan", b"inf", b"0.5", b"-0", b"+", b".", b"e", b"%", b"=", b"*=", b"+=",
    b">", b":", b"/", b"-", b"_", b"~", b"@", b"#", b"|", b"*", b",", b";", b"(", b")", b"[", b"]",
    b"{", b"}", b'"', b"'", b"\\", b"\\u0000", b"\n", b"\r", b"\t", b"\x00", b"\xff",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", "٣".encode(), "é".encode(), "²".encode(),
    b"null", b"true", b"false", b"[]", b"{}", b"- ", b": ", b"&a", b"*a", b"!!python/object:x",
    b"<<", b"0F0", b"1B1", b"0OPT9", b"(0F1;0B0)OVERLAP_F_B", b"0F0.1", b"rank", b"stage", b"copy",
    b"default", b"<img onerror=1>", b"1f1b", b"full", b"None", b"GB", b"KiB",
)  # fmt: skip
"""Words that mean something somewhere, or nothing anywhere."""

_TOKEN = re.compile(rb"\w+|\s+|.", re.DOTALL)

Mutator = Callable[[Random, bytes, Sequence[bytes]], bytes]
"""Makes an input of an input; `others` are more inputs of the same kind."""


@lru_cache(maxsize=512)
def tokens_of(content: bytes) -> tuple[bytes, ...]:
    """Words, blanks, and single characters."""
    return tuple(_TOKEN.findall(content)) or (b"",)


def words(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A few tokens replaced, moved, doubled, lost, or taken from another input."""
    pick = random.random
    tokens = list(tokens_of(content))
    for _ in range(1 + int(3 * pick() * pick())):
        size = len(tokens)
        spot, how = int(size * pick()), int(8 * pick())
        if how == 0:
            tokens[spot] = WORDS[int(len(WORDS) * pick())]
        elif how == 1:
            other = int(size * pick())
            tokens[spot], tokens[other] = tokens[other], tokens[spot]
        elif how == 2:
            del tokens[spot : spot + 1 + int(4 * pick())]
        elif how == 3:
            tokens.insert(spot, tokens[int(size * pick())])
        elif how == 4:
            tokens[spot] = b"%d" % int(10 ** (8 * pick()) - 1)
        elif how == 5:
            tokens.insert(spot, WORDS[int(len(WORDS) * pick())])
        elif how == 6:
            found = tokens_of(others[int(len(others) * pick())])
            begin = int(len(found) * pick())
            tokens[spot:spot] = found[begin : begin + 1 + int(12 * pick())]
        else:
            byte = bytearray(tokens[spot] or b" ")
            byte[int(len(byte) * pick())] = int(256 * pick())
            tokens[spot] = bytes(byte)
        tokens = tokens or [b""]
    return b"".join(tokens)


def raw(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Bytes flipped, lost, doubled, cut off, or taken from another input."""
    pick = random.random
    found = bytearray(content or b"\x00")
    for _ in range(1 + int(4 * pick() * pick())):
        spot, how = int(len(found) * pick()), int(7 * pick())
        many = 1 + int(10 ** (3 * pick()))
        if how == 0:
            found[spot] ^= 1 << int(8 * pick())
        elif how == 1:
            found[spot] = (0, 1, 127, 128, 255, 34, 44, 10)[int(8 * pick())]
        elif how == 2:
            del found[spot : spot + many]
        elif how == 3:
            found[spot:spot] = found[max(spot - many, 0) : spot]
        elif how == 4:
            del found[spot:]
        elif how == 5:
            other = others[int(len(others) * pick())]
            begin = int(len(other) * pick())
            found[spot:spot] = other[begin : begin + many]
        else:
            found[spot : spot + 4] = int(pick() * 2**32).to_bytes(4, "little")
        found = found or bytearray(b"\x00")
    return bytes(found)


def changed(random: Random, data: Any) -> Any:
    """A tree with one of its nodes replaced, lost, doubled, renamed or put elsewhere."""
    places: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        node = waiting.pop()
        keys: Any = node if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    if not places:
        return deepcopy(random.choice(VALUES))
    node, key = random.choice(places)
    how = random.randrange(8)
    if how == 0:
        del node[key]
    elif how == 1:
        other, name = random.choice(places)
        if name in other if isinstance(other, dict) else name < len(other):
            node[key] = deepcopy(other[name])
    elif how == 2 and isinstance(node, dict):
        node[random.choice(("", "x", "F", "times", f"{key}s", *map(str, node)))] = node.pop(key)
    elif how == 3 and isinstance(node, list):
        node.insert(key, deepcopy(node[random.randrange(len(node))]))
    elif how == 4 and isinstance(node[key], int | float):
        step = random.choice((-1, 1, 0.5, -2.0, 1 << 20, 1e300))
        node[key] = node[key] + step if abs(node[key]) < 1e300 else step
    elif how == 5:
        node[key] = {str(key): node[key]} if random.random() < 0.5 else [node[key]]
    else:
        node[key] = deepcopy(random.choice(VALUES))
    return data


def tree(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """JSON whose tree is changed; else, and sometimes, its words or bytes."""
    chance = random.random()
    if chance < 0.25:
        return words(random, content, others)
    if chance < 0.35:
        return raw(random, content, others)
    try:
        data = json.loads(content)
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            data = changed(random, data) if isinstance(data, dict | list) else data
        return json.dumps(data).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return words(random, content, others)


def yaml_tree(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """YAML whose words are changed, or its tree, which then is JSON, a part of YAML."""
    if random.random() < 0.5:
        return words(random, content, others)
    import yaml

    try:
        return tree(random, json.dumps(yaml.safe_load(content)).encode(), others)
    except (ValueError, TypeError, RecursionError, yaml.YAMLError):
        return words(random, content, others)


def packed(inner: Mutator) -> Mutator:
    """Of files that are compressed: their content, or the bytes as they lie there."""

    def mutate(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
        if random.random() < 0.4:
            return raw(random, content, others)
        try:
            plain = gzip.decompress(content)
        except (OSError, EOFError, ValueError, gzip.zlib.error):
            return raw(random, content, others)
        return gzip.compress(inner(random, plain, [plain]), 1)

    return mutate


def numbered(inner: Mutator) -> Mutator:
    """Of one file of several, which the first byte says."""

    def mutate(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
        return content[:1] + inner(random, content[1:], [other[1:] for other in others])

    return mutate


def database(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """SQLite: other values, tables and columns lost or renamed; or bytes of its pages."""
    if random.random() < 0.4:
        return raw(random, content, others)
    file = sqlite3.connect(":memory:")
    try:
        file.deserialize(content)
        named = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        for _ in range(random.choice((1, 1, 2))):
            kind, name = random.choice(file.execute(named).fetchall())
            columns = [row[1] for row in file.execute(f'PRAGMA table_info("{name}")')]
            column = random.choice(columns)
            value = random.choice([one for one in VALUES if not isinstance(one, dict | list)])
            value = value if not isinstance(value, int) or abs(value) < 1 << 63 else str(value)
            how = random.randrange(7)
            if how == 0:
                file.execute(f'DROP {kind} "{name}"')
            elif how == 1:
                file.execute(f'ALTER TABLE "{name}" RENAME COLUMN "{column}" TO "x"')
            elif how == 2:
                file.execute(f'DELETE FROM "{name}" WHERE rowid % 2 = {random.randrange(2)}')
            elif how == 3:
                file.execute(f'INSERT INTO "{name}" SELECT * FROM "{name}" LIMIT 3')
            elif how == 4:
                file.execute(f"PRAGMA user_version = {random.randrange(9)}")
                file.execute(f"PRAGMA application_id = {random.randrange(9)}")
            else:
                part = random.choice(("", " WHERE rowid = 1", " WHERE rowid % 3 = 0"))
                file.execute(f'UPDATE "{name}" SET "{column}" = ?{part}', (value,))
        file.commit()
        return file.serialize()
    except (sqlite3.Error, IndexError, UnicodeError, OverflowError):
        return raw(random, content, others)
    finally:
        file.close()


def mixed(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Words mostly, else bytes."""
    return (raw if random.random() < 0.15 else words)(random, content, others)
