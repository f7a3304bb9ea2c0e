"""gzip and zstd: members and frames, headers, cuts at every kind of place, damage, names that lie."""

import gzip
import os
import random
import shutil
import struct
import subprocess
import zlib

from case import Case, Entry, Refusal

TEXT = b"".join(b"line %d of the text, word%d\n" % (i, i * i % 97) for i in range(6000))
FHCRC, FEXTRA, FNAME, FCOMMENT = 2, 4, 8, 16


def member(text, level=6, flags=0, extra=b"", strategy=zlib.Z_DEFAULT_STRATEGY):
    """One gzip member with the optional header fields that gzip.compress never writes."""
    head = b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<L", 0) + b"\x00\xff"
    if flags & FEXTRA:
        head += struct.pack("<H", len(extra)) + extra
    if flags & FNAME:
        head += b"a file name.txt\x00"
    if flags & FCOMMENT:
        head += b"a comment\nof two lines\x00"
    if flags & FHCRC:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    body = zlib.compressobj(level, zlib.DEFLATED, -15, 8, strategy)
    return head + body.compress(text) + body.flush() + struct.pack("<LL", zlib.crc32(text), len(text) & 0xFFFFFFFF)


def gz(name, text, stored, **more):
    return Case(name, [Entry(b"input/a.gz", text, stored)], **more)


def bad(name, stored, first, last=None, file="a.gz", **more):
    """The byte that is named lies from `first` to `last`: no further than the damage can be noticed."""
    offset = (first, first if last is None else last)
    return Case(
        name,
        [Entry(b"input/" + file.encode(), None, stored), Entry(b"input/zz.txt", b"fine\n")],
        refusal=Refusal(codes=(1,), names=(file, f"/input/{file} (decompressed)"), offset=offset),
        **more,
    )


def cut(name, stored, **more):
    """A file that ends too early is to blame at its end, exactly."""
    return bad(name, stored, len(stored), **more)


def good_gzip(rnd):
    yield gz("gzip_plain", TEXT, member(TEXT))
    yield gz("gzip_empty_text", b"", member(b""))
    yield gz("gzip_no_final_newline", b"a b\nc", member(b"a b\nc"))
    for level in (0, 1, 9):
        yield gz(f"gzip_level_{level}", TEXT, member(TEXT, level))
    yield gz("gzip_fixed_codes", TEXT, member(TEXT, strategy=zlib.Z_FIXED))
    yield gz("gzip_huffman_only", TEXT, member(TEXT, strategy=zlib.Z_HUFFMAN_ONLY))
    for flags in (FEXTRA, FNAME, FCOMMENT, FHCRC, FEXTRA | FNAME | FCOMMENT | FHCRC):
        yield gz(f"gzip_header_fields_{flags}", TEXT, member(TEXT, flags=flags, extra=b"EX\x03\x00abc"))
    yield gz("gzip_longest_extra_field", TEXT, member(TEXT, flags=FEXTRA, extra=os.urandom(65535)))
    yield gz("gzip_two_members_cut_in_a_line", b"first secondhalf\nlast", member(b"first second") + member(b"half\nlast"))
    yield gz("gzip_empty_members", b"a\nb\n", member(b"") + member(b"a\n") + member(b"") * 3 + member(b"b\n") + member(b""))
    yield gz("gzip_thousand_members", TEXT[:20000], b"".join(member(TEXT[i : i + 20]) for i in range(0, 20000, 20)))
    # The second member's header begins at every place around the sizes that a reader might use as its buffer.
    for border in (4096, 16384, 32768, 65536, 131072, 262144, 1 << 20):
        entries = []
        for shift in range(-12, 3, 1 if border == 65536 else 4):
            head = member_of_size(rnd, border + shift)
            entries.append(Entry(b"input/%03d.gz" % (shift + 20), head[0] + b"tail of it\n", head[1] + member(b"tail of it\n")))
        yield Case(f"gzip_member_border_{border}", entries)
    yield Case(
        "gzip_among_plain_files",
        [Entry(b"input/a.txt", b"plain\n"), Entry(b"input/b.gz", b"zipped\n", member(b"zipped\n")), Entry(b"input/c", b"plain too\n")],
    )
    yield Case("gzip_bytes_under_a_plain_name_are_bytes", [Entry(b"input/a.txt", member(b"zipped\n"))])
    yield Case(
        "gzip_name_of_a_folder", [Entry(b"input/folder.gz/inner.txt", b"in a folder\n"), Entry(b"input/b.gz", b"z\n", member(b"z\n"))]
    )
    yield Case("gzip_named_outright", [Entry(b"one.gz", b"zipped\n", member(b"zipped\n"))], inputs=(b"one.gz",))
    # Tapes pad with zeros, and gzip itself skips them. Reading what is there is right, refusing is clear; losing the text is neither.
    yield gz("gzip_zero_padding", TEXT, member(TEXT) + b"\x00" * 512, or_refusal=True, refusal=Refusal(names=("a.gz",)))
    yield gz("gzip_file_of_no_bytes", b"", b"", or_refusal=True, refusal=Refusal(names=("a.gz",)))
    yield gz("gzip_expands_a_thousand_times", b"same line\n" * 1_000_000, member(b"same line\n" * 1_000_000, 9))


def member_of_size(rnd, size):
    """(text, member) whose stored size is exactly `size`: random lines, then an extra field fills the rest."""
    text = b"".join(b"%x\n" % rnd.getrandbits(64) for _ in range(max(0, size - 1200) // 12))
    bare = len(member(text, flags=FEXTRA))
    while size - bare > 60000:
        text += b"".join(b"%x\n" % rnd.getrandbits(64) for _ in range((size - bare - 30000) // 12))
        bare = len(member(text, flags=FEXTRA))
    stored = member(text, flags=FEXTRA, extra=b"\x00" * (size - bare))
    assert len(stored) == size, (len(stored), size)
    return text, stored


def bad_gzip(rnd):
    whole, two = member(TEXT * 5, flags=FNAME), member(b"first\n") + member(TEXT)
    for kept in (1, 2, 3, 9, 10, 15):
        yield cut(f"gzip_cut_in_header_{kept}", whole[:kept])
    for part in (0.02, 0.3, 0.5, 0.98):
        yield cut(f"gzip_cut_at_{int(part * 100)}_percent", whole[: int(len(whole) * part)])
    for gone in (1, 3, 4, 5, 7, 8, 9):
        yield cut(f"gzip_cut_{gone}_bytes_before_the_end", whole[:-gone])
    first = len(member(b"first\n"))
    for kept in (1, 2, 5, 9, 40):
        yield cut(f"gzip_second_member_cut_after_{kept}", two[: first + kept])

    def flipped(data, place, bit=0x10):
        return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]

    size = len(whole)
    for place, what, last in ((0, "magic", 0), (1, "magic_2", 0), (2, "method", 4)):
        yield bad(f"gzip_wrong_{what}", flipped(whole, place), min(place, last), last)
    yield bad("gzip_reserved_flag", flipped(whole, 3, 0x80), 3, 4)
    for place, what in ((-1, "size"), (-4, "size_low"), (-5, "crc"), (-8, "crc_low")):
        yield bad(f"gzip_wrong_{what}", flipped(whole, size + place, 1), size - 8, size)
    for part in (0.1, 0.5, 0.9):
        yield bad(f"gzip_flipped_at_{int(part * 100)}_percent", flipped(whole, int(size * part)), int(size * part), size)
    yield bad("gzip_second_member_damaged", flipped(two, len(two) - 200), len(two) - 200, len(two))
    yield bad("gzip_wrong_header_crc", flipped(member(TEXT, flags=FHCRC), 10, 1), 10, 12)
    yield bad("gzip_is_plain_text", b"not gzip at all\n", 0)
    yield bad("gzip_is_one_byte", b"x", 0, 1)
    yield bad("gzip_is_zeros", b"\x00" * 1000, 0)
    good = member(TEXT)
    yield bad("gzip_trailing_garbage", good + b"garbage behind the member", len(good), len(good) + 2)
    yield cut("gzip_trailing_half_magic", good + b"\x1f")
    yield cut("gzip_one_bad_of_many", good[:-2], file="m050.gz")
    # A large text before the damage, so that a task has long begun to give records when it meets it.
    big = member(b"".join(b"%x %x\n" % (rnd.getrandbits(40), rnd.getrandbits(40)) for _ in range(250_000)), 1)
    yield cut("gzip_cut_late", big[:-100])
    yield bad("gzip_damaged_late", flipped(big, len(big) - 3000), len(big) - 3000, len(big))


def zstd(text, *flags):
    return subprocess.run(["zstd", "-q", "-c", *flags], input=text, stdout=subprocess.PIPE, check=True).stdout


def skippable(payload, kind=0):
    return struct.pack("<LL", 0x184D2A50 + kind, len(payload)) + payload


def zs(name, text, stored, **more):
    return Case(name, [Entry(b"input/a.zst", text, stored)], needs=("zstd",), **more)


def bad_zs(name, stored, first, last):
    return bad(name, stored, first, last, file="a.zst", needs=("zstd",))


def cut_zs(name, stored):
    return cut(name, stored, file="a.zst", needs=("zstd",))


def all_zstd():
    if not shutil.which("zstd"):
        yield Case("zstd_cases", needs=("zstd",))
        return
    yield zs("zstd_plain", TEXT, zstd(TEXT))
    yield zs("zstd_empty_text", b"", zstd(b""))
    for flag in ("-1", "-19", "--fast=5", "--no-check", "--check", "--no-content-size", "--long=27"):
        yield zs(f"zstd_{flag.strip('-').replace('=', '_').replace('-', '_')}", TEXT * 3, zstd(TEXT * 3, flag))
    yield zs("zstd_two_frames_cut_in_a_line", b"first secondhalf\nlast", zstd(b"first second") + zstd(b"half\nlast"))
    yield zs("zstd_empty_frames", b"a\nb\n", zstd(b"") + zstd(b"a\n") + zstd(b"") * 2 + zstd(b"b\n") + zstd(b""))
    yield zs("zstd_five_hundred_frames", TEXT[:500], b"".join(zstd(TEXT[i : i + 50]) for i in range(0, 500, 50)) if TEXT else b"")
    one = zstd(TEXT)
    yield zs("zstd_skippable_first", TEXT, skippable(b"meta") + one)
    yield zs("zstd_skippable_middle", TEXT + b"end\n", one + skippable(b"x" * 70000, 15) + zstd(b"end\n"))
    yield zs("zstd_skippable_last", TEXT, one + skippable(b"", 7))
    yield zs("zstd_skippable_only", b"", skippable(b"nothing else"))
    for kept in (1, 3, 4, 5, 8):
        yield cut_zs(f"zstd_cut_in_header_{kept}", one[:kept])
    for part in (0.3, 0.6, 0.97):
        yield cut_zs(f"zstd_cut_at_{int(part * 100)}_percent", one[: int(len(one) * part)])
    for gone in (1, 3, 4, 5):
        yield cut_zs(f"zstd_cut_{gone}_bytes_before_the_end", one[:-gone])
    yield cut_zs("zstd_second_frame_cut", one + one[: len(one) // 2])
    yield cut_zs("zstd_skippable_cut", one + skippable(b"x" * 100)[:50])
    yield bad_zs("zstd_head_is_gone", one[20:], 0, 4)
    damaged = one[: len(one) // 2] + bytes([one[len(one) // 2] ^ 0x21]) + one[len(one) // 2 + 1 :]
    yield bad_zs("zstd_damaged", damaged, 0, len(one))
    yield bad_zs("zstd_second_frame_damaged", one + damaged, len(one), 2 * len(one))
    yield bad_zs("zstd_wrong_checksum", one[:-1] + bytes([one[-1] ^ 1]), 0, len(one))
    yield bad_zs("zstd_is_plain_text", b"not zstd at all\n", 0, 4)
    yield bad_zs("zstd_is_gzip", gzip.compress(TEXT), 0, 4)
    yield bad("gzip_is_zstd", one, 0, needs=("zstd",))
    yield bad_zs("zstd_trailing_garbage", one + b"garbage behind the frame", len(one), len(one) + 4)
    yield zs("zstd_file_of_no_bytes", b"", b"", or_refusal=True, refusal=Refusal(names=("a.zst",)))


def all_cases():
    rnd = random.Random(4711)
    yield from good_gzip(rnd)
    yield from bad_gzip(rnd)
    yield from all_zstd()
