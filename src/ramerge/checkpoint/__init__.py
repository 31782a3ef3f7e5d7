"""Checkpoints on disk: headers, indices, companions, and weights as bytes. Nothing here knows of merging."""
