"""Replies over plain HTTP: the health of the server, and why a client may not connect."""

from __future__ import annotations

import http
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from chameleon_policy.serve.authentication import is_authorised
from chameleon_policy.serve.door import peer_of

HEALTH = "/healthz"


def handshake_filter(
    token: str | None,
    health: Callable[[], Mapping[str, Any]],
    why_full: Callable[[str], str | None],
    refused: Callable[[str, str], object],
) -> Callable[[ServerConnection, Request], Response | None]:
    """Return a function that replies to an HTTP request, or returns None to accept a websocket.

    `why_full` returns why no further client of an address can connect, or None; `refused` is called
    with the address and the reason of those that are not let in.
    """

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == HEALTH:
            return _response(http.HTTPStatus.OK, json.dumps(health()), kind="application/json")
        # two headers could contradict each other: they count as none
        peer = peer_of(connection.remote_address)
        given = request.headers.get_all("Authorization")
        if not is_authorised(given[0] if len(given) == 1 else None, token):
            refused(peer, "no token" if not given else "wrong token")
            return _response(
                http.HTTPStatus.UNAUTHORIZED,
                "this server expects its token in the header `Authorization: Bearer TOKEN`; with "
                "the client: Client(url, token=...)",
                **{"WWW-Authenticate": "Bearer"},
            )
        if path != "/":
            return _response(http.HTTPStatus.NOT_FOUND, f"there is {HEALTH}, and a websocket at /")
        if "websocket" not in ", ".join(request.headers.get_all("Upgrade")).lower():
            said = f"this is a policy server: connect with a websocket, or see {HEALTH}"
            return _response(http.HTTPStatus.UPGRADE_REQUIRED, said, Upgrade="websocket")
        if (full := why_full(peer)) is not None:
            refused(peer, full)
            return _response(http.HTTPStatus.SERVICE_UNAVAILABLE, full)
        return None

    return answer


def _response(
    status: http.HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8", **headers: str
) -> Response:
    body = f"{text}\n".encode()
    more = {
        "Content-Type": kind,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "Cache-Control": "no-store",
    }
    return Response(status.value, status.phrase, Headers({**more, **headers}), body)
