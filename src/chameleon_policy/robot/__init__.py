"""The robot loop: control at a fixed rate against a policy server, without ever leaving out a tick
of the memory.

Read in this order: robot -> clock, plan, limits -> loop -> recording, latency -> run; camo_sim and
lerobot_robot are robots.
"""
