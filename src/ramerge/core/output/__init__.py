"""Outputs: their places, and how they appear complete or not at all.

targets        what OUT may be: a folder, a bucket, a repository of the hub; whether it may be written or replaced
lifecycle      opens, completes, discards and tidies an output, local or remote; called by `engine.outputs`, `api`,
               `deltas`
staging        `OutputDir`, a local OUT, made by `lifecycle` and asked for problems by `planning/build` and `deltas`;
               `StagingDir`, the hidden folder alongside it: the rename that ends it, what killed runs left
remote_output  the same for a remote OUT: shards are uploaded one by one; calls the uploads of `storage`, also to clean
write          large files: the layout of a safetensors file (`lay_out`), and a `Writer` of many threads at any offset;
               for sinks of `engine`, for deltas and recorded inputs
"""
