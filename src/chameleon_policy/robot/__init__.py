"""The robot loop: control at a fixed rate with a policy server, whose memory gets every tick.

Read in this order: robot -> clock, plan, limits -> settings, loop -> recording, latency, link ->
run; camo_sim and lerobot_robot are robots.
"""
