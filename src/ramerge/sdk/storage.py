"""Places of models: folders, buckets and the hub.

>>> from ramerge.sdk.storage import is_hub_id, is_remote
>>> is_remote("s3://bucket/model"), is_hub_id("owner/model")
(True, True)
"""

from ramerge.core.storage import hub
from ramerge.core.storage.location import Location, here, is_far
from ramerge.core.storage.own_files import BLOCK, COMPANIONS, DELTA_INDEX, RECORDS, digest_of_delta_index, signed
from ramerge.core.storage.resolve import FoundModel, is_hub_id, not_found
from ramerge.core.storage.schemes import is_remote, on_hub

__all__ = [
    "BLOCK",
    "COMPANIONS",
    "DELTA_INDEX",
    "RECORDS",
    "FoundModel",
    "Location",
    "digest_of_delta_index",
    "here",
    "hub",
    "is_far",
    "is_hub_id",
    "is_remote",
    "not_found",
    "on_hub",
    "signed",
]
