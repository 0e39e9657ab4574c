"""Serve a policy to robots over websockets."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import UNSET
from chameleon_policy.device import Device
from chameleon_policy.serve import ServerSettings, find_token, serve


def main(
    run: tyro.conf.Positional[Path],
    port: int = ServerSettings.port,
    host: str = ServerSettings.host,
    token_file: Annotated[Path | None, UNSET] = None,
    tls_cert: Annotated[Path | None, UNSET] = None,
    tls_key: Annotated[Path | None, UNSET] = None,
    insecure: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    audit: Annotated[Path | None, UNSET] = None,
    sessions: int = ServerSettings.max_sessions,
    sessions_per_peer: Annotated[int | None, UNSET] = None,
    connections: int = ServerSettings.max_connections,
    connections_per_peer: Annotated[int | None, UNSET] = None,
    max_steps: int = ServerSettings.max_sampling_steps,
    idle_seconds: float = ServerSettings.idle_seconds,
    device: Device = "auto",
) -> None:
    """Serve a policy to robots over websockets: one memory each, computed together.

    Ctrl-C ends it. Health: GET /healthz on the same port. The client is the package
    chameleon-policy-client (docs/serving.md).

    Args:
        run: Folder of a run or of a saved policy, or camo-small, which comes with the package.
        port: Where to listen; 0: any port that is free.
        host: Address to listen on; any but this machine's own needs a token.
        token_file: File with the token that clients have to know (default: the variable
            CHAMELEON_TOKEN).
        tls_cert: Certificate (PEM): connections are encrypted, and the URL begins with wss://.
        tls_key: Key of the certificate (PEM).
        insecure: Accept clients of other machines without encryption, in a network that you trust.
        audit: File for a line about every session and refusal (JSON; default: none).
        sessions: Memories of all clients together.
        sessions_per_peer: Memories of one address (default: three quarters of all, at least 16).
        connections: Connections of all clients together.
        connections_per_peer: Connections of one address (default: likewise).
        max_steps: Sampling steps of one chunk; requests with more are refused.
        idle_seconds: Seconds without a request after which a session is closed.
        device: Where the policy computes (default: a GPU if there is one).
    """
    logging.basicConfig(format="chameleon: %(message)s", level=logging.WARNING)
    settings = ServerSettings(
        host=host,
        port=port,
        token=find_token(token_file),
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure=insecure,
        audit=audit,
        max_sessions=sessions,
        max_sessions_per_peer=sessions_per_peer,
        max_connections=connections,
        max_connections_per_peer=connections_per_peer,
        max_sampling_steps=max_steps,
        idle_seconds=idle_seconds,
        max_sessions_per_connection=min(sessions, ServerSettings.max_sessions_per_connection),
    )
    serve(run, settings, device=device, announce=lambda line: print(line, flush=True))
