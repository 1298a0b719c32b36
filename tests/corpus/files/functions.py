"""Functions that fail, do not end, or return something else than asked for."""

import sys

import debubble as db


def exits(*, ranks, microbatches):
    sys.exit(0)


def exits_late(*, ranks, microbatches):
    yield ["0F0", "0B0"]
    sys.exit(0)


def leaves(*, ranks, microbatches):
    raise GeneratorExit


def base(*, ranks, microbatches):
    raise BaseException("x")


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError


def silent(*, ranks, microbatches):
    raise SilentError


def inner(*, ranks, microbatches):
    def program():
        yield "0F0"
        raise KeyError("inner")

    yield program()


def forever(*, ranks, microbatches):
    while True:
        yield ["0F0"]


def endless(*, ranks, microbatches):
    def program():
        while True:
            yield "0F0"

    for _ in range(ranks):
        yield program()


def other_sizes(*, ranks, microbatches):
    return db.make("gpipe", ranks=2, microbatches=2)
