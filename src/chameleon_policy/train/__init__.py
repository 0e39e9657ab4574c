"""Training: episodes in memory -> batches -> one loop for every method -> checkpoints and a policy.

Read in this order: config -> store -> order -> feeder -> loop -> checkpoint -> run.
"""
