"""Files of torch.save: pickles whose bytes and instructions were changed, and archives that were."""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random

from ramerge.core.formats.sharded import part_of
from ramerge.core.formats.torchfile.instructions import RefusedError
from ramerge.core.formats.torchfile.load import View, load_file
from ramerge.core.formats.views import tensor_of
from ramerge.core.foundation.errors import CheckpointError
from ramerge.core.tensors.reader import Files, Reader
from tests.formats.test_torchfile import DEEP, SIZE, STUB, archive, numbers, state, storage, tensor
from tests.fuzz.common import BATCH, check_refusal, folder
from tests.fuzz.mutate import torn

PARTS = (
    pickle.EMPTY_LIST * 1000,
    pickle.MARK * 1000,
    pickle.LONG_BINPUT + b"\xff\xff\xff\x7f",
    pickle.BINBYTES + b"\xff\xff\xff\x7f",
    pickle.BINUNICODE8 + b"\xff" * 8,
    pickle.EXT1 + b"\x01",
    pickle.GLOBAL + b"os\nsystem\n",
    pickle.GLOBAL + b"torch.distributed.tensor\nDTensor\n",
    pickle.REDUCE,
    pickle.BUILD,
    pickle.BINPERSID,
    pickle.SETITEMS,
    pickle.TUPLE,
    pickle.POP,
    SIZE,
    STUB,
    DEEP,
    numbers(2**62, 2**62),
    storage(),
    tensor((0, 3), (2**60, 1)),
)


@cache
def _good() -> tuple[tuple[bytes, ...], bytes]:
    """The instructions of a pickle, and the file with them."""
    pickled = state(a=tensor(), b=tensor((3, 2), (1, 3)))
    places = [*(place for _, _, place in pickletools.genops(pickled) if place is not None), len(pickled)]
    steps = tuple(pickled[begin:end] for begin, end in pairwise(places))
    return steps, archive(folder("pickles") / "good", pickled).read_bytes()


def cases(seed: int) -> Iterator[bytes]:
    """Whole files."""
    rng = Random(seed)
    good, whole = _good()
    for _ in range(BATCH):
        if rng.random() < 0.3:
            yield torn(rng, whole)
            continue
        steps = list(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            place = rng.randrange(len(steps))
            copied = steps[place : place + rng.randrange(10)]
            steps[place : place + rng.choice((0, 1, 1, 5))] = rng.choice(([rng.choice(PARTS)], copied, []))
        changed = b"".join(steps)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("archive/data.pkl", torn(rng, changed) if rng.random() < 0.2 else changed)
            file.writestr("archive/data/0", bytes(24))
        yield buffer.getvalue()


def check(case: bytes) -> bool:
    """Values, whose tensors lie in the file, or an error."""
    path = folder("pickles") / "file.pt"
    path.write_bytes(case)
    try:
        found = load_file(path)
        for value in found.values() if isinstance(found, dict) else ():
            _use(value)
    except CheckpointError as error:
        check_refusal(error)
        return False
    except RefusedError as error:
        check_refusal(CheckpointError(str(error)))
        return False
    return True


def _use(value: object) -> None:
    """Read what is a tensor, as a format would."""
    for _, view in part_of(value).boxes:
        assert isinstance(view, View)
        read = tensor_of("x", view)
        assert read.nbytes <= 24
        with Files() as files:
            reader = Reader(files)
            reader.begin(0, read.elements)
            reader.block(read)
