"""The memory theatre: episodes of a policy with its recall and beliefs at every step.

Read in this order: encoding (an episode as text) -> page, and the scripts that run in it;
rerun_recording (the same episodes for Rerun).
"""
