"""Compiled loops over arrays. They know no files, no names and no threads; every kernel releases the GIL."""
