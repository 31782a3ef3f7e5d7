"""The command that installs an extra of ramerge."""


def install(extra: str) -> str:
    """The command that installs an extra, such as `eval`; pip keeps the ramerge that is already there."""
    return f"pip install 'ramerge[{extra}]'"
