"""From a model's name to its files, on this machine or not: object stores, the hub, the memory of this process.

Remote files are read by ranges; nothing is downloaded whole. Outputs are uploaded as whole files.

resolve        from a model's name to its folder
location       what names a file or folder anywhere: `Path`, or `Remote`, which has the same methods (`tensors.access`)
storage        the interface: which files there are, each pinned to its version, and their bytes
schemes        which storage and upload a name such as `s3://bucket/model` belongs to
objects        buckets: s3://, gs://, az://
hub            a repository of the hub at one commit
upload         what a run has uploaded, and how its shards are named
bucket_upload  a model in a bucket: shards first, indexes last, under a claim
hub_upload     a branch of a repository of the hub, in one commit
client         requests, retries and errors, which are obstore's, and human-readable errors
memory         folders in this process's memory
own_files      folders that ramerge writes: models inside of an output; names and the signed index of a delta's files,
               because uploads sign an index again
"""
