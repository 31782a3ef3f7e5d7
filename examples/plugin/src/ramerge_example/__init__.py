"""A merging method and a format for ramerge."""
