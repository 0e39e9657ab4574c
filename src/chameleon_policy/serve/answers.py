"""Requests become replies: alone, or in batches that fall apart into single ones if they fail."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from chameleon_policy.policy import Observation
from chameleon_policy.policy.checks import NotFiniteError
from chameleon_policy.serve.requests import RequestError
from chameleon_policy.serve.sampling import Draft
from chameleon_policy.serve.sessions import PendingRequest, Reply, Session

LOG = logging.getLogger("chameleon_policy.serve")


@dataclass(eq=False, slots=True)
class Member:
    """One session's request in a batch."""

    session: Session
    pending: PendingRequest
    slot: int
    observation: Observation | None = None
    """Checked, a batch of one; None where a chunk is requested."""
    draft: Draft | None = None
    """The requested chunk."""


def error_reply(code: str, message: str, ticks: int | None = None) -> Reply:
    """Return the reply to a refused request; `ticks` counts the observations in its memory."""
    reply = {"kind": "error", "code": code, "message": message}
    return reply if ticks is None else {**reply, "ticks": ticks}


def answer_in_batches(
    requests: Sequence[tuple[Session, PendingRequest]],
    check: Callable[[Session, PendingRequest], Member],
    kind: Callable[[Member], Hashable],
    compute: Callable[[Sequence[Member]], list[Reply | None]],
) -> list[tuple[PendingRequest, Reply]]:
    """Check every request alone, then compute those of one kind together."""
    replies: list[tuple[PendingRequest, Reply]] = []
    alike: dict[Hashable, list[Member]] = defaultdict(list)
    for session, pending in requests:
        member = answer(session, check, session, pending)
        if isinstance(member, Member):
            alike[kind(member)].append(member)
        else:
            replies.append((pending, member))
    for members in alike.values():
        replies += compute_batch(sorted(members, key=lambda member: member.slot), compute)
    return replies


def compute_batch(
    members: Sequence[Member], compute: Callable[[Sequence[Member]], list[Reply | None]]
) -> list[tuple[PendingRequest, Reply]]:
    """Return the replies to a batch; compute its members one by one if it fails.

    A chunk that is not done yet has no reply.
    """
    if len(members) == 1:
        alone = answer(members[0].session, compute, members)
        answers = alone if isinstance(alone, list) else [alone]
    else:
        try:
            answers = compute(members)
        except NotFiniteError:  # of one robot: no matter for the log
            return [reply for member in members for reply in compute_batch([member], compute)]
        except Exception:
            LOG.exception("a batch of %d failed; each is computed one by one", len(members))
            return [reply for member in members for reply in compute_batch([member], compute)]
    return [
        (member.pending, reply)
        for member, reply in zip(members, answers, strict=True)
        if reply is not None
    ]


def answer(session: Session, carry_out: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `carry_out`, or a reply with its error."""
    try:
        return carry_out(*arguments)
    except RequestError as error:
        return error_reply(error.code, error.message, session.ticks)
    except NotFiniteError as error:
        return error_reply("not-finite", str(error), session.ticks)
    except ValueError as error:  # the policy's other checks
        return error_reply("refused", str(error), session.ticks)
    except Exception as error:
        LOG.exception("a request failed")
        return error_reply(
            "failed",
            f"the policy failed ({type(error).__name__}); see the server's log",
            session.ticks,
        )
