"""Files that are not on this machine: object stores, web servers, the hub. Read by ranges; nothing is downloaded whole.

place     what names a file or folder anywhere: `Path`, or `Remote`, which has the same methods
storage   the interface: which files there are, each pinned to its version, and their bytes
table     which storage a name such as `s3://bucket/model` belongs to; a new one is a file here and a row there
objects   buckets: s3://, gs://, az://
web       https://, where files are found by their usual names because nothing lists them
hub       a repository of the hub at one commit
client    requests, retries and errors, which are obstore's, and errors in words
"""
