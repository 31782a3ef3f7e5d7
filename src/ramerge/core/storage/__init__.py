"""From a model's name to its files, on this machine or not: object stores, the hub, the memory of this process.

Remote files are read by ranges; nothing is downloaded whole. Outputs are uploaded as whole files.

Names:

resolve        from a model's name to a `FoundModel`, for `planning.inputs`: a path, a remote name, or an id on the hub
schemes        remote names such as `s3://bucket/model`: opens the storage or the upload that they belong to
location       a file or folder anywhere: `Path`, or `Remote`, which has the same methods (`tensors.access`)

Reading, called by `location.Remote` and `tensors.reader`:

storage        the interface: the files of a remote folder, each pinned to its `Version`, and a `Stream` of their bytes
objects        buckets: s3://, gs://, az://; also lists them for `bucket_upload`
hub            a repository of the hub at one commit; readable errors, for `resolve`, `hub_upload` and `soups`
memory         folders of arrays in this process, for `state_dicts`
client         for `objects` and `hub`: requests and retries, which are obstore's, and readable errors

Uploading, called by `output.remote_output`:

bucket_upload  a model in a bucket: shards first, indexes last, under a claim
hub_upload     a branch of a repository of the hub, in one commit
upload         for both: `UploadRun`, the log of what a run has uploaded, and the names of its shards

own_files      names of files by which ramerge knows its own outputs, so that they may be replaced; signs the index of a
               delta, for `deltas` and for `bucket_upload`, which changes it
"""
