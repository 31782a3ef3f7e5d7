"""A merging method, a format and a kind of output for ramerge."""
