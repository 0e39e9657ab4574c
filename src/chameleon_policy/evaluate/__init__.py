"""Closed-loop evaluation: environments in parallel, one batched policy, scores with intervals.

Read in this order: settings -> pool -> executor -> rollouts -> camo -> watch, videos.
"""
