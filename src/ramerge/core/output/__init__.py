"""Outputs: where they may be, and how they appear complete or not at all.

targets        what OUT may be: a folder, a bucket, or a repository on the hub; whether it may be written or replaced
lifecycle      begins and completes an output, local or remote, and cleans up after interrupted runs; called by
               `engine.outputs`, `api`, `deltas`
staging        `OutputDir`, a local OUT, made by `lifecycle` and checked for problems by `planning/build` and `deltas`;
               `StagingDir`, the folder that is built in the hidden folder alongside OUT; the rename to OUT
remote_output  the same for a remote OUT: shards are uploaded one by one; calls the uploads of `storage`, also to clean
               up
write          large files: the layout of a safetensors file (`lay_out`), and a `Writer` that many threads may use at
               any offset; for sinks of `engine`, for deltas and recorded inputs
"""
