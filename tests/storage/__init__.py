"""Remote files: a real S3 server, and stand-ins for web servers and the hub that also answer badly."""
