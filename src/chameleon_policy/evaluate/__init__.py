"""Closed-loop evaluation: environments in parallel, one batched policy, scores with intervals.

Read in this order: pool -> executor -> rollouts -> evaluation -> loading -> watch, videos.
"""
