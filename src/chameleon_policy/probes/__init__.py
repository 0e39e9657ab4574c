"""Probes: the content of a memory, what recall takes from it, and how early the working state holds
the next choice.

Read in this order: representations (the material of the probes) -> separability, prospectiveness;
surgery (edits of a memory) -> continuation (episodes continued with an edited memory) ->
addressability; study (all three probes for the command line); theatre and theatre_episode (the
material of the report's page).
"""
