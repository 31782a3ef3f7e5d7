"""What the core knows of the layout of deltas."""

from __future__ import annotations

import json

import xxhash

from ramerge.core.storage.own_files import digest_of_delta_index, signed

VALUES = {"weight_map": {"b": "2", "a": "1"}, "metadata": {"format": 1, "base": "é"}}


def test_digest_is_of_the_documented_json() -> None:
    text = r'{"metadata":{"base":"\u00e9","format":1},"weight_map":{"a":"1","b":"2"}}'
    assert digest_of_delta_index(VALUES) == xxhash.xxh3_128_hexdigest(text.encode("ascii"))


def test_signed_index_has_its_digest() -> None:
    made = signed(VALUES)
    assert made["metadata"]["index"] == digest_of_delta_index(made) == digest_of_delta_index(VALUES)
    assert signed(made) == made
    assert "index" not in VALUES["metadata"], "what is signed stays as it is"


def test_order_does_not_matter_and_values_do() -> None:
    other = json.loads(json.dumps(VALUES, sort_keys=True))
    assert digest_of_delta_index(other) == digest_of_delta_index(VALUES)
    other["weight_map"]["a"] = "3"
    assert digest_of_delta_index(other) != digest_of_delta_index(VALUES)
