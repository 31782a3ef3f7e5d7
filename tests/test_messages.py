"""Messages in files: every section belongs to a test that reads it, and words that differ fail."""

from pathlib import Path

import pytest

from tests.messages import Messages, read_messages

TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", sorted(TESTS.glob("*/messages.txt")), ids=lambda path: path.parent.name)
def test_every_section_has_its_test(path: Path) -> None:
    texts = {module.stem: module.read_text(encoding="utf-8") for module in path.parent.rglob("test_*.py")}
    for section in read_messages(path):
        module, _, test = section.partition("::")
        assert f"def {test.partition('[')[0]}(" in texts.get(module, ""), section


def test_written_messages_are_compared(tmp_path: Path) -> None:
    path, folders = tmp_path / "messages.txt", {"TMP": str(tmp_path)}
    writer = Messages("test_a::test_b[c]", path, folders, write=True)
    writer.check(f"{tmp_path}/x: is wrong\n  - one\n\nanother", "y")
    writer.finish()
    assert read_messages(path) == {"test_a::test_b[c]": ["TMP/x: is wrong\n  - one\n\nanother", "y"]}
    reader = Messages("test_a::test_b[c]", path, folders, write=False)
    reader.check(f"{tmp_path}/x: is wrong\n  - one\n\nanother")
    with pytest.raises(AssertionError):
        reader.finish()  # the second was not said
    with pytest.raises(AssertionError):
        reader.check("z")
