"""Speed of training and control, ours and others' in one run: `make bench`, or on a GPU

    python -m benchmarks.performance --device cuda --out docs/results/performance-h200.json

Parts, a file each: `training` (our step against our own plain code), `control` (against LeRobot's
Diffusion and ACT policies), `ssm` (state_space.py: the state-space layer against transformers and
mamba-ssm), `length` (cost against episode length), `recording` (steps as CUDA graphs and without).
A peer that is not installed is left out and named; --peers names a folder with packages that are
not.
"""
