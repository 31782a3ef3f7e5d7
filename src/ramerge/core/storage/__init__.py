"""Find, read and upload files of models: local folders, object stores, the hub, the memory of this process.

Remote files are read by ranges; no file is downloaded as a whole. Outputs are uploaded as whole files.

Names:

resolve        finds the model with a name, for `planning.inputs`: a path, a remote name, or an id on the hub
schemes        remote names such as `s3://bucket/model`: opens the storage to read from, or the upload to write to
location       a file or folder, local or remote: `Path`, or `Remote`, which has the same methods (`tensors.access`)

Reading, called by `location.Remote` and `tensors.reader`:

storage        the interface: the files of a remote folder, each pinned to its `Version`, and a `Stream` of their bytes
objects        buckets: s3://, gs://, az://; also lists them for `bucket_upload`
hub            a repository on the hub at one commit; readable errors, for `resolve`, `hub_upload` and `soups`
memory         folders of arrays in this process, for `state_dicts`
client         requests and retries with obstore, and readable errors; for `objects` and `hub`

Uploading, called by `output.remote_output`:

bucket_upload  a model in a bucket: shards first, indexes last, under a claim
hub_upload     a branch of a repository on the hub, in one commit
upload         for both: `UploadRun`, the log of a run's uploads, and the names of its shards

own_files      names of files by which ramerge recognizes its own outputs, which may be replaced; signs the index of a
               delta, for `deltas` and for `bucket_upload`, which changes it
"""
