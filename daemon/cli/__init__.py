"""`memfs`, the command line: a client of the daemon; only check and compact open the data."""

from daemon.cli.main import main

__all__ = ["main"]
