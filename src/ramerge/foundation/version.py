"""The version of this package, which records and pages name."""

__version__ = "0.1.0"
