"""What the exit status of a command means. Commands that start others rely on it."""

from __future__ import annotations

REFUSED = 2
"""Options or files are wrong; the last line on stderr says which and what to do."""
ALREADY_TRAINED = 3
"""The budget of the run in this folder is spent; its policy is there."""
NO_ROOM = 4
"""The GPU's memory is full."""
STOPPED = 128
"""Stopped by a signal, whose number is added: everything is saved and the same command goes on."""
INTERRUPTED = 130
"""Stopped by Ctrl-C."""
