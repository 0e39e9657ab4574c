"""Chameleon as a LeRobot policy, and Camo as a LeRobot environment.

LeRobot imports this module because of its name; importing it registers `--policy.type=chameleon`,
`--env.type=camo`, the optimizer `chameleon_muon` and the schedule `chameleon_cosine`. The policy is
chameleon_policy's own: here is translation.

    configuration_chameleon   options; which of LeRobot's features the policy sees; dataset.py fills in the rest
    modeling_chameleon        the policy: forward, update, select_action; windows.py, carry.py, statistics.py help it
    processor_chameleon       LeRobot's pipelines, which leave all numbers as they are
    optimization              the optimizer and the schedule
    environment, camo_env     Camo
    convert                   a policy of `chameleon train` becomes one that LeRobot loads
"""

from lerobot_policy_chameleon import environment, optimization
from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig

__all__ = ["ChameleonConfig", "environment", "optimization"]
