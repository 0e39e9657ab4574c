"""Export a policy as two programs, `observe` and `act`, that run without this package's model code.

    programs -> writing -> check -> exporting    from a trained policy to a directory; needs torch
    manifest -> runtime                          from a directory to actions; NumPy, and torch or
                                                 ONNX Runtime

`chameleon export RUN` calls `exporting.export_policy`. This file imports nothing, so that running
an export through ONNX Runtime does not need torch.
"""
