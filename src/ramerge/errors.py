"""The classes of `ramerge.foundation.errors` under the name of earlier versions; all of them are in `ramerge` too."""

from ramerge.foundation.errors import *  # noqa: F403 - the names are those of its __all__
