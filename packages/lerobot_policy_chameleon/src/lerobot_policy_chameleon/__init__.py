"""Chameleon as a LeRobot policy, and Camo as a LeRobot environment.

LeRobot imports this module because of its name; importing it registers `--policy.type=chameleon`,
`--env.type=camo`, the optimizer `chameleon_muon` and the schedule `chameleon_cosine`. The policy is
chameleon_policy's own; this package only translates. LeRobot imports torch before it, so that how
torch's threads wait cannot be set here: OMP_WAIT_POLICY=PASSIVE belongs into the shell.

    configuration_chameleon   options and features; dataset.py completes them from the dataset
    modeling_chameleon        the policy: forward, update, select_action
                              (with windows.py, carry.py, statistics.py)
    processor_chameleon       LeRobot's pipelines, which change no numbers
    optimization              the optimizer and the schedule
    environment, camo_env     Camo
    convert                   policies of `chameleon train` for LeRobot
"""

from lerobot_policy_chameleon import environment, optimization
from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig

__all__ = ["ChameleonConfig", "environment", "optimization"]
