"""All encodings. To add one, write a file and add its row here."""

from __future__ import annotations

from ramerge.core.formats.encodings import compressed, fbgemm, fp8, modelopt, mxfp4
from ramerge.core.formats.encodings.encoding import Encoding

ENCODINGS: tuple[Encoding, ...] = (
    fp8.ENCODING,
    compressed.ENCODING,
    modelopt.ENCODING,
    mxfp4.ENCODING,
    fbgemm.ENCODING,
)
