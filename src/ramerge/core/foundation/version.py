"""The version of this package. Records and pages show it."""

__version__ = "0.1.0"
