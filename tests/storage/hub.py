"""A stand-in for the hub: the routes that huggingface_hub asks, and a server of bytes with signed addresses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.storage.web import Request, WebServer, serving

NAME = "org/tool"
COMMIT = "0123456789012345678901234567890123456789"
TOKEN = "hf_a-token-of-tests"
_LARGE = (".safetensors",)


class HubRequest(Request):
    """What the hub answers. Files are in `NAME` and its siblings under the folder; all have one commit."""

    token = ""
    signature = "1"
    seen: list[tuple[str, str]]

    def give(self, **options: Any) -> bool:
        """Answer well."""
        address = urlsplit(self.path)
        parts = address.path.strip("/").split("/")
        self.seen.append((address.path, self.headers.get("Authorization", "")))
        if parts[0] == "bytes":
            if parse_qs(address.query).get("sig") != [type(self).signature]:
                return self.say(403, b"<Error><Code>AccessDenied</Code></Error>")
            if self.command != "GET":
                return self.say(403)  # signatures are for one kind of request
            return super().give(**options)
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.say(401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
            return self._tree("/".join(parts[2:4]))
        if parts[:2] == ["api", "models"]:
            return self._info("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main")
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.say(404, X_Error_Code="EntryNotFound")

    @property
    def file(self) -> Path:
        """What the server of bytes is asked for."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        inside = parts[1:] if parts[0] == "bytes" else parts[:2] + parts[4:]
        return self.web.folder.joinpath(*inside)

    def _info(self, name: str, revision: str) -> bool:
        folder = self.web.folder / name
        if not folder.is_dir():
            return self.say(404, X_Error_Code="RepoNotFound")
        if revision not in ("main", COMMIT):
            return self.say(404, X_Error_Code="RevisionNotFound")
        siblings = [about(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.*"))]
        body = {"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
        return self.say(200, json.dumps(body).encode(), Content_Type="application/json")

    def _tree(self, name: str) -> bool:
        folder = self.web.folder / name
        listed = []
        for path in sorted(folder.rglob("*.*")):
            known = about(path, path.relative_to(folder).as_posix())
            listed.append({"type": "file", "path": known["rfilename"], "size": known["size"], "oid": known["blobId"]})
        return self.say(200, json.dumps(listed).encode(), Content_Type="application/json")

    def _resolve(self, name: str, revision: str, key: str) -> bool:
        path = self.web.folder / name / key
        if not path.is_file():
            return self.say(404, X_Error_Code="EntryNotFound")
        known, commit = about(path, key), COMMIT if revision == "main" else revision
        if path.suffix not in _LARGE:
            return super().give(tag=f'"{known["blobId"]}"', X_Repo_Commit=commit)
        self.send_response(302)
        for header, value in {
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"',
            "X-Linked-Size": str(path.stat().st_size),
            "Location": f"{self.web.url.replace('127.0.0.1', 'localhost')}/bytes/{name}/{key}?sig={self.signature}",
            "Content-Length": "0",
        }.items():
            self.send_header(header, value)
        self.end_headers()
        return True


def about(path: Path, key: str) -> dict[str, object]:
    """What the hub says of a file."""
    data = path.read_bytes()
    known: dict[str, object] = {"rfilename": key, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
    if path.suffix in _LARGE:
        known["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return known


@contextmanager
def standing_in(folder: Path, token: str = "") -> Iterator[WebServer]:
    """A hub with the repositories `owner/name` in a folder, until the block ends."""
    handler = type("Hub", (HubRequest,), {"token": token, "seen": []})
    with serving(folder, handler) as server:
        server.handler = handler  # type: ignore[attr-defined]
        yield server
