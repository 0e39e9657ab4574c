"""What can go wrong between a robot and its policy."""

from __future__ import annotations


class ConnectionLost(ConnectionError):  # noqa: N818
    """The connection is gone, and with it every memory that was opened on it."""


class ServerError(RuntimeError):
    """The server refused a request; the memory is as it was before.

    `code` is one of those in the table of `docs/serving.md`: a program can tell them apart,
    `message` is for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code, self.message = code, message


class Timeout(TimeoutError):  # noqa: N818
    """No answer in time. The request may still be carried out: what it asked for can have
    happened.
    """
