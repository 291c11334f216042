"""`python -m daemon.cli` is `memfs`."""

from daemon.cli.main import main

main()
