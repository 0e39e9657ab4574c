"""Measurements behind the documents; most of them write a JSON into `docs/results/`.

Run each as `python -m benchmarks.NAME`. Result files name these commands, so no module is renamed.

- Speed: `performance`, `camo`, `training`, `serving`, `fairness`, `robot_loop`, `exporting`, and
  `busy` beside a busy process; `floor` and `small_cards` count the operations and the memory that
  the hardware needs.
- Studies: `initialisation`, `half_lives`, `delayed_question`, `which_memory`, `delay_study`,
  `curves` (methods against a dial), `annotated_decisions`, `brief_working_state`, `told_answer`,
  `euler_steps`.
- Reliability: `reliability` kills, sends malformed messages and waits; `mutations` puts bugs into
  a copy of the code and lists those that no test finds.
- Results: `camo_scores` publishes scores, `parameters` counts parameters, `lerobot_scores` compares
  two evaluations, `same_numbers` two revisions, `tables` writes the tables of the documents.
- Peers: `transformers_peer`, `mamba_peer`, `lerobot_peer`, `lerobot_server_peer` run other people's
  code. `transformers_peer` is also the reference of the tests of the state-space layer.
- Helpers: `inputs`, `timing`, `serving_client`; `delayed_recall`, the task of `initialisation`.
"""

from __future__ import annotations

import shlex
import sys


def with_arguments(command: str) -> str:
    """Return a command with the arguments of this process, for the provenance of its result."""
    return shlex.join([*command.split(), *sys.argv[1:]])
