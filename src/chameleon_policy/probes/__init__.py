"""Looking inside: what a memory holds, what recall takes from it, and how early the working state
is ready to act.

Read in this order: linear (the probe) -> representations (what it reads) -> separability,
prospectiveness; continuation (episodes that go on with an edited memory) -> addressability; study
(all three for a command).
"""
