"""The page of a search: `write` makes it, `charts` holds the figures."""
