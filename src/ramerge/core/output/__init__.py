"""Outputs: where one may be, and how it appears complete or not at all.

targets        what an output may be: a folder, a bucket, a repository of the hub
lifecycle      builds, completes and cleans up an output of either kind
staging        the hidden folder that a local output is built in, and the rename that ends it
remote_output  a remote output: built in the staging directory, uploaded file by file
write          the large files, written at any offset by many threads: of the engine, of deltas and of recorded inputs
"""
