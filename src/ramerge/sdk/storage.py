"""Locations of models: folders, buckets and the hub.

>>> from ramerge.sdk.storage import is_hub_id, is_remote
>>> is_remote("s3://bucket/model"), is_hub_id("owner/model")
(True, True)
"""

from ramerge.core.storage.location import Location
from ramerge.core.storage.resolve import is_hub_id
from ramerge.core.storage.schemes import is_remote

__all__ = [
    "Location",
    "is_hub_id",
    "is_remote",
]
