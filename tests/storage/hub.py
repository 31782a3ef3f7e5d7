"""A stand-in for the hub: the routes that huggingface_hub asks, and a server of bytes with signed addresses."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.storage.web import Request, WebServer, serving

NAME = "org/tool"
COMMIT = "0123456789012345678901234567890123456789"
TOKEN = "hf_a-token-of-tests"
_LARGE = (".safetensors",)


@dataclass
class State:
    """What was written to the hub.

    Attributes:
        role: what the token may do.
        private: the repositories that were made, and whether they are private.
        heads: the last commit of a branch of a repository; `COMMIT` if there is none.
        large: large files by digest.
        commits: names of the files of each commit.
    """

    role: str = "write"
    private: dict[str, bool] = field(default_factory=dict)
    heads: dict[tuple[str, str], str] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    commits: list[list[str]] = field(default_factory=list)


class HubRequest(Request):
    """What the hub answers. Files of `NAME` and of others are in folders of these names, and those of a branch in
    `NAME@BRANCH`; what was not written through the hub has one commit."""

    token = ""
    signature = "1"
    seen: list[tuple[str, str]]
    state: State

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
        if parts[0] == "large":
            self.state.large[parts[1]] = self.body
            return self.say(200, ETag='"1"')
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            return self.say(401, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        if self.command != "GET" and self.command != "HEAD":
            return self._write(parts)
        if parts == ["api", "whoami-v2"]:
            return self._said({"name": "me", "auth": {"accessToken": {"role": self.state.role}}})
        if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
            return self._tree("/".join(parts[2:4]), parts[5])
        if parts[:2] == ["api", "models"] and parts[4:] == ["refs"]:
            return self._refs("/".join(parts[2:4]))
        if parts[:2] == ["api", "models"]:
            return self._info("/".join(parts[2:4]), parts[5] if parts[4:5] == ["revision"] else "main")
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.say(404, X_Error_Code="EntryNotFound")

    @property
    def file(self) -> Path:
        """What the server of bytes is asked for."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[0] == "bytes":
            return self.web.folder.joinpath(*parts[1:])
        return self._folder("/".join(parts[:2]), parts[3]).joinpath(*parts[4:])

    def _said(self, body: object) -> bool:
        return self.say(200, json.dumps(body).encode(), Content_Type="application/json")

    def _write(self, parts: list[str]) -> bool:
        """An upload, or something that huggingface_hub posts."""
        body = self.body
        if self.state.role != "write":
            return self.say(403, b'{"error": "You don\'t have the rights"}')
        if parts[:2] == ["api", "validate-yaml"]:
            return self._said({"errors": [], "warnings": []})
        if parts[:3] == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if parts[2:] == ["info", "lfs", "objects", "batch"]:
            return self._batch(json.loads(body))
        name, what, branch = "/".join(parts[2:4]), parts[4], parts[5]
        if what == "branch":
            (self.web.folder / f"{name}@{branch}").mkdir()
            return self._said({})
        if what == "preupload":
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(_LARGE) else "regular" for path in files}
            return self._said(
                {"files": [{"path": path, "uploadMode": modes[path], "shouldIgnore": False} for path in files]}
            )
        assert what == "commit", parts
        return self._commit(name, branch, [json.loads(line) for line in body.splitlines()])

    def _create(self, asked: dict[str, Any]) -> bool:
        name = f"{asked['organization']}/{asked['name']}"
        if (self.web.folder / name).is_dir():
            return self.say(409, json.dumps({"error": "exists", "url": f"{self.web.url}/{name}"}).encode())
        (self.web.folder / name).mkdir(parents=True)
        self.state.private[name] = asked["visibility"] == "private"
        return self._said({"url": f"{self.web.url}/{name}"})

    def _batch(self, asked: dict[str, Any]) -> bool:
        def answer(oid: str, size: int) -> dict[str, Any]:
            upload = {"href": f"{self.web.url}/large/{oid}?sig={self.signature}"}
            known = {} if oid in self.state.large else {"actions": {"upload": upload}}
            return {"oid": oid, "size": size, **known}

        return self._said({"transfer": "basic", "objects": [answer(**each) for each in asked["objects"]]})

    def _commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> bool:
        folder = self._folder(name, branch)
        header, *changes = lines
        head = self.state.heads.get((name, branch), COMMIT)
        if header["value"].get("parentCommit") not in (None, head):
            return self.say(412, b'{"error": "The branch has moved"}')
        for change in changes:
            value, path = change["value"], folder / change["value"]["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if change["key"] == "deletedFile":
                path.unlink()
            elif change["key"] == "lfsFile":
                data = self.state.large[value["oid"]]
                assert (hashlib.sha256(data).hexdigest(), len(data)) == (value["oid"], value["size"])
                path.write_bytes(data)
            else:
                path.write_bytes(base64.b64decode(value["content"]))
        self.state.commits.append([change["value"]["path"] for change in changes])
        commit = self.state.heads[name, branch] = hashlib.sha1(repr(lines).encode()).hexdigest()
        return self._said({"commitUrl": f"{self.web.url}/{name}/commit/{commit}", "commitOid": commit})

    def _folder(self, name: str, revision: str) -> Path:
        branches = {commit: branch for (repository, branch), commit in self.state.heads.items() if repository == name}
        branch = "main" if revision == COMMIT else branches.get(revision, revision)
        return self.web.folder / (name if branch == "main" else f"{name}@{branch}")

    def _info(self, name: str, revision: str) -> bool:
        if not (self.web.folder / name).is_dir():
            return self.say(404, X_Error_Code="RepoNotFound")
        folder = self._folder(name, revision)
        if not folder.is_dir():
            return self.say(404, X_Error_Code="RevisionNotFound")
        siblings = [about(path, path.relative_to(folder).as_posix()) for path in sorted(folder.rglob("*.*"))]
        sha = self.state.heads.get((name, revision), COMMIT)
        private = self.state.private.get(name, False)
        return self._said(
            {"_id": "1", "id": name, "modelId": name, "sha": sha, "siblings": siblings, "private": private}
        )

    def _refs(self, name: str) -> bool:
        home = self.web.folder / name
        branches = ["main", *(path.name.partition("@")[2] for path in sorted(home.parent.glob(f"{home.name}@*")))]
        refs = [
            {
                "name": branch,
                "ref": f"refs/heads/{branch}",
                "targetCommit": self.state.heads.get((name, branch), COMMIT),
            }
            for branch in branches
        ]
        return self._said({"branches": refs, "converts": [], "tags": []})

    def _tree(self, name: str, revision: str) -> bool:
        folder = self._folder(name, revision)
        listed = []
        for path in sorted(folder.rglob("*.*")):
            known = about(path, path.relative_to(folder).as_posix())
            listed.append({"type": "file", "path": known["rfilename"], "size": known["size"], "oid": known["blobId"]})
        return self.say(200, json.dumps(listed).encode(), Content_Type="application/json")

    def _resolve(self, name: str, revision: str, key: str) -> bool:
        folder = self._folder(name, revision)
        path = folder / key
        if not path.is_file():
            return self.say(404, X_Error_Code="EntryNotFound")
        known, commit = about(path, key), COMMIT if revision == "main" else revision
        if path.suffix not in _LARGE:
            return super().give(tag=f'"{known["blobId"]}"', X_Repo_Commit=commit)
        held = f"bytes/{folder.relative_to(self.web.folder)}/{key}"
        self.send_response(302)
        for header, value in {
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"',
            "X-Linked-Size": str(path.stat().st_size),
            "Location": f"{self.web.url.replace('127.0.0.1', 'localhost')}/{held}?sig={self.signature}",
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
    handler = type("Hub", (HubRequest,), {"token": token, "seen": [], "state": State()})
    with serving(folder, handler) as server:
        server.handler = handler  # type: ignore[attr-defined]
        yield server
