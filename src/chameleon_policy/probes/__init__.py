"""Probes: what a memory holds, what recall reads, and when the working state holds the next choice.

Read in this order: representations (the material of the probes) -> separability, prospectiveness;
surgery (edits of a memory) -> continuation (episodes continued with an edited memory) ->
addressability; study (all three probes for the command line); theatre and theatre_episode (the
material of the report's page).
"""
