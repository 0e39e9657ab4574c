"""Closed-loop evaluation: environments in parallel, one batched policy, scores with intervals.

Read in this order: settings -> pool -> rollouts -> camo -> watch, videos.
"""
