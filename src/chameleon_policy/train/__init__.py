"""Training: episodes in memory -> batches -> one loop for every method -> checkpoints and a policy.

Read in this order: config -> sampling -> store -> augmentation -> feeder -> loop -> training. A
time step goes through Episodes -> EpisodeArrays -> EpisodeStore -> Timeline -> EpisodeWindow (with
an EpisodeBatch and its Observation) -> loss.
"""
