"""Benchmarks: `python -m benchmarks --help`; the numbers they gave are in README.md."""
