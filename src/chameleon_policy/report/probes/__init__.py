"""What probes found, for people: table (beside the paper's numbers), figures, trajectories, and the
files of them all.
"""
