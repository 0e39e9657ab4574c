"""A policy as two programs that run without this package's model code: `observe` and `act`.

    programs -> onnx_files -> directory -> exporting    from a trained policy to a directory; needs torch
    manifest -> runtime                                 from a directory to actions; NumPy, and torch or ONNX Runtime
    check                                               the one beside the other

`chameleon export RUN` calls `exporting.export_policy`. Nothing is imported here, so that whoever
runs an export through ONNX Runtime does not wait for torch, and need not have it.
"""
