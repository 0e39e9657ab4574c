"""Errors between a robot and its policy."""

from __future__ import annotations


class ConnectionLost(ConnectionError):  # noqa: N818
    """The loss of the connection, and with it of every memory that was opened on it."""


class ServerError(RuntimeError):
    """A request that the server refused; the memory is as it was before.

    `code` is one of the codes in the table of `docs/serving.md`, for programs; `message` is for
    people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} [{code}]")
        self.code, self.message = code, message


class Timeout(TimeoutError):  # noqa: N818
    """A reply that did not come in time; the request may still be carried out."""
