"""The command line: one file per verb, and one door (``main``) through which every error leaves as a message.

Standard output carries data, standard error talk. Exit codes: 0 done, 1 not done (interrupted, or a fault of ours),
2 asked for something that cannot be done. Nothing heavier than typer is imported before a verb runs, so that help
comes at once.
"""

from maclaurin.cli.entry import main

__all__ = ["main"]
