"""Exit codes of commands; those of signals are what a shell shows for them."""

BAD_INPUT = 2
INTERNAL = 70
INTERRUPTED = 130
BROKEN_PIPE = 141
