"""One awkward case: what lies on the disk, what is typed, and what must come out."""

import dataclasses
import os
import typing


@dataclasses.dataclass
class Entry:
    """A file of the input. `text` is what a reader should see (None: not read at all), `stored` the bytes on the disk."""

    path: bytes
    text: typing.Optional[bytes]
    stored: typing.Optional[bytes] = None

    def bytes_on_disk(self):
        return self.stored if self.stored is not None else (self.text or b"")


@dataclasses.dataclass
class Refusal:
    """The job must fail: with one of these exit codes, in three parts, naming each of `names`; `offset`: the first and the last byte of the
    stored file between which the one must lie that the message's first line names."""

    codes: typing.Tuple[int, ...] = (1,)
    names: typing.Tuple[str, ...] = ()
    offset: typing.Optional[typing.Tuple[int, int]] = None


@dataclasses.dataclass
class Records:
    """The texts are records of one size, sorted by the `key_bytes` from `key_offset` on (0: by all of them)."""

    bytes: int
    key_offset: int = 0
    key_bytes: int = 0
    reverse: bool = False

    def flags(self):
        key = (f"--key={self.key_offset}:{self.key_bytes}",) if self.key_bytes else ()
        return (f"--record={self.bytes}", *key, *(("--reverse",) if self.reverse else ()))


@dataclasses.dataclass
class Case:
    name: str
    entries: typing.List[Entry] = dataclasses.field(default_factory=list)
    inputs: typing.Tuple[bytes, ...] = (b"input",)  # as typed, relative to the case's folder, which {folder} stands for, as in `output`
    output: bytes = b"out"
    refusal: typing.Optional[Refusal] = None
    or_refusal: bool = False  # a clear refusal is as good as the right result; silence is not
    flags: typing.Tuple[str, ...] = ()
    records: typing.Optional[Records] = None  # not lines; `jobs` is ("sort",) then
    jobs: typing.Tuple[str, ...] = ("wordcount", "sort")
    environment: typing.Dict[str, str] = dataclasses.field(default_factory=dict)
    prepare: typing.Optional[typing.Callable[[bytes], None]] = None  # called with the case's folder after the files are written
    verify: typing.Optional[typing.Callable[[bytes], None]] = None  # called after the run; raises AssertionError
    cleanup: typing.Optional[typing.Callable[[bytes], None]] = None
    as_nobody: bool = False  # run without root's rights
    needs: typing.Tuple[str, ...] = ()  # capabilities by name: mount (of a tmpfs), zstd
    keep_output: bool = False  # the output place is part of the case: do not expect it to be absent after a refusal
    embedded_only: bool = False
    exact_command: typing.Optional[typing.Tuple[bytes, ...]] = None  # typed as it is after the binary's name
    timeout_s: int = 120

    def write(self, folder):
        os.makedirs(os.path.join(folder, b"input"), exist_ok=True)
        for entry in self.entries:
            path = os.path.join(folder, entry.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(entry.bytes_on_disk())
        if self.prepare:
            self.prepare(folder)

    def texts(self):
        return [entry.text for entry in self.entries if entry.text is not None]


def text_case(name, *texts, **more):
    """A case of plain text files a.txt, b.txt, ... in input/."""
    return Case(name, [Entry(b"input/f%03d.txt" % i, text) for i, text in enumerate(texts)], **more)
