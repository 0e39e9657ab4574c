"""Exit statuses of the commands. Commands that start others rely on them."""

from __future__ import annotations

REFUSED = 2
"""Options or files are wrong; the last line on stderr names them and the remedy."""
ALREADY_TRAINED = 3
"""The run in this folder has used its budget; its policy is complete."""
NO_ROOM = 4
"""The memory of the machine or of its GPU is full."""
STOPPED = 128
"""Stopped by a signal, whose number is added; the run is saved, the same command continues it."""
INTERRUPTED = 130
"""Stopped by Ctrl-C."""
