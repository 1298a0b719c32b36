"""``python -m debubble`` is the command line."""

from debubble.cli import main

main()
