"""Laws ask what tests of the command line ask."""

from tests.cli.conftest import run

__all__ = ["run"]
