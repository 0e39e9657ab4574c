"""Settings of a policy that come from its dataset: object slots and statistics."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chameleon_policy.baselines import method_named
from chameleon_policy.policy import preset
from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig
from lerobot_policy_chameleon.statistics import as_plain, from_frames, from_summary
from lerobot_policy_chameleon.windows import OBJECTS

LOG = logging.getLogger("chameleon_policy")
_SLOT = re.compile(r"slot(\d+)\.(.+)")


def complete(config: ChameleonConfig, stats: Any, meta: Any) -> None:
    """Fill in what the configuration leaves open; settings of a checkpoint stay."""
    if meta is not None and config.object_size is None and OBJECTS in (config.input_features or {}):
        config.object_size = slot_size(meta.features[OBJECTS].get("names"))
    config.validate_features()
    if config.statistics is not None:
        if config.half_life_limit is None and method_named(config.method).has_working_state:
            LOG.warning(
                "the fast layer of this policy has no half_life_limit (trained without one, or "
                "before there was one): its working state may outlast the traces "
                "(docs/deviations.md)"
            )
        return
    if config.half_life_limit is None:
        config.half_life_limit = preset(config.preset).fast.half_life_limit
    stats = meta.stats if stats is None and meta is not None else stats
    features = config.policy_features()
    if meta is not None and any((Path(meta.root) / "data").rglob("*.parquet")):
        config.statistics = as_plain(from_frames(Path(meta.root), features))
    elif stats is not None:
        config.statistics = as_plain(from_summary(stats, features))
    else:
        raise ValueError(
            "a new policy needs the statistics of a dataset; train one with lerobot-train, or load "
            "one with --policy.path"
        )


def slot_size(names: Sequence[str] | None) -> int | None:
    """Return the numbers per slot from names like slot0.x, slot0.y, slot1.x; else None."""
    found = [_SLOT.fullmatch(name) for name in names or ()]
    parts = [(int(match[1]), match[2]) for match in found if match]
    if not parts or len(parts) != len(found):
        return None
    fields = [name for slot, name in parts if slot == 0]
    count = parts[-1][0] + 1
    return (
        len(fields) if parts == [(slot, name) for slot in range(count) for name in fields] else None
    )
