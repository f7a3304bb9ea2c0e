"""Records of one size that hold any bytes (TeraSort's binary form): sizes, keys, equal keys, compressed files, and what is wrong."""

import random
import shutil

from case import Case, Entry, Records, Refusal
from cases_compressed import member, zstd


def records_case(name, records, *files, **more):
    """`files`: bytes as a reader should see them, or (suffix, those bytes, stored bytes)."""
    entries = []
    for i, file in enumerate(files):
        suffix, text, stored = file if isinstance(file, tuple) else (".bin", file, None)
        entries.append(Entry(b"input/f%03d%s" % (i, suffix.encode()), text, stored))
    return Case("records_" + name, entries, records=records, jobs=("sort",), **more)


def good(rnd):
    plain = Records(100, 0, 10)
    some = rnd.randbytes(100 * 700)
    yield records_case("random", plain, some)
    yield records_case("no_key", Records(100), some)
    yield records_case("key_is_all", Records(100, 0, 100), some)
    yield records_case("key_inside", Records(100, 4, 8), some)
    yield records_case("key_at_the_end", Records(100, 90, 10), some)
    yield records_case("key_is_the_last_byte", Records(100, 99, 1), some)
    yield records_case("reverse", Records(100, 0, 10, reverse=True), some)
    yield records_case("reverse_no_key", Records(100, reverse=True), some)
    yield records_case("overwrite_of_nothing", plain, some, flags=("--overwrite",))

    # Each byte value in turn decides, and stands everywhere else too: '\n', NUL, 0x7f and 0x80 have no meaning.
    order = list(range(256))
    rnd.shuffle(order)
    for place in (0, 1, 7, 8, 9):
        each = b"".join(b"k" * place + bytes([v]) + b"k" * (9 - place) + bytes([255 - v]) * 6 for v in order)
        yield records_case(f"each_byte_value_at_{place}", Records(16, 0, 10), each)
    for value in (0x00, 0x0A, 0x0D, 0x20, 0x7F, 0x80, 0xFF):
        yield records_case(f"only_byte_{value:02x}", Records(10, 2, 4), bytes([value]) * 10 * 50)
    yield records_case("one_byte_records", Records(1), rnd.randbytes(5000))
    yield records_case("two_byte_records", Records(2, 1, 1), rnd.randbytes(5000))

    # Equal keys: what follows the key numbers the records, so that their order shows.
    def numbered(keys, count, size=16):
        return b"".join(rnd.choice(keys) + i.to_bytes(4, "big") + rnd.randbytes(size - 8) for i in range(count))

    yield records_case("equal_keys_only", Records(16, 0, 4), numbered([b"same"], 3000))
    yield records_case("few_keys", Records(16, 0, 4), numbered([b"\n\n\n\n", b"\0\0\0\0", b"\xff\0\xff\0", b"aaab"], 5000))
    yield records_case("few_keys_reverse", Records(16, 0, 4, reverse=True), numbered([b"abcd", b"abce", b"\0\0\0\n"], 5000))
    yield records_case("duplicate_records", Records(100, 0, 10), some[:3000] * 40)
    yield records_case("few_keys_in_many_files", Records(16, 0, 4), *(numbered([b"aaaa", b"bbbb"], 200) for _ in range(20)))

    yield records_case("one", plain, rnd.randbytes(100))
    yield records_case("two", plain, rnd.randbytes(200))
    yield records_case("none", plain, b"")
    yield records_case("no_file", plain)
    yield records_case("empty_among_others", plain, b"", rnd.randbytes(300), b"", rnd.randbytes(100))
    for size in (3, 7, 4096, 65_536):
        yield records_case(f"size_{size}", Records(size, 1, 2), rnd.randbytes(size * 23))
    yield records_case("larger_than_a_buffer", Records(1_500_000, 1_499_990, 8), rnd.randbytes(6 * 1_500_000))
    yield records_case("many_parts", plain, rnd.randbytes(100 * 300), flags=("--reducers", "9"))
    yield records_case("more_parts_than_records", plain, rnd.randbytes(300), flags=("--reducers", "17"))
    # Several splits: their borders fall between records whatever the size.
    yield records_case("several_splits", Records(99, 3, 10), rnd.randbytes(99 * 130_000), flags=("--reducers", "3"))
    yield records_case("output_has_no_line_ends", Records(4, 0, 2), b"".join(b"%04d" % (i * 7919 % 10000) for i in range(5000)))


def compressed(rnd):
    plain, some = Records(100, 0, 10), rnd.randbytes(100 * 900)
    yield records_case("gzip", plain, (".gz", some, member(some)))
    yield records_case("gzip_large", plain, (".gz", some * 30, member(some * 30)))
    pieces = member(some[:150]) + member(some[150:199]) + member(some[199:1000])
    yield records_case("gzip_members_cut_in_a_record", plain, (".gz", some[:1000], pieces))
    yield records_case("gzip_of_nothing", plain, (".gz", b"", member(b"")))
    yield records_case("gzip_among_plain_files", plain, some[:500], (".gz", some[500:900], member(some[500:900])), some[900:1100])
    for size, offset in ((1234, 1200), (1, 0)):
        said = ("f000.gz", f"at byte {offset} (decompressed)", "no multiple of 100")
        yield records_case(f"gzip_incomplete_{size}", plain, (".gz", None, member(some[:size])), refusal=Refusal(names=said))
    cut = member(some)[:-20]
    yield records_case("gzip_cut", plain, (".gz", None, cut), refusal=Refusal(names=("f000.gz",), offset=(len(cut), len(cut))))
    if not shutil.which("zstd"):
        yield records_case("zstd", plain, needs=("zstd",))
        return
    yield records_case("zstd", plain, (".zst", some, zstd(some)), needs=("zstd",))
    yield records_case(
        "zstd_incomplete",
        plain,
        (".zst", None, zstd(some[:299])),
        refusal=Refusal(names=("f000.zst", "at byte 200 (decompressed)")),
        needs=("zstd",),
    )


def wrong(rnd):
    plain = Records(100, 0, 10)
    for size, offset in ((1, 0), (99, 0), (101, 100), (12_345, 12_300), (9_000_050, 9_000_000)):
        said = ("f000.bin", f"at byte {offset}: ", f"its {size} bytes")
        yield records_case(f"incomplete_{size}", plain, rnd.randbytes(size), refusal=Refusal(names=said))
    files = (rnd.randbytes(200), rnd.randbytes(250), rnd.randbytes(300))
    yield records_case("incomplete_among_others", plain, *files, refusal=Refusal(names=("f001.bin", "at byte 200: ")))

    def typed(name, *flags, names=()):
        return Case(
            "records_" + name,
            [Entry(b"input/a.bin", b"0123456789")],
            flags=flags,
            refusal=Refusal(codes=(2,), names=names),
            jobs=("sort",),
        )

    yield typed("key_beyond_the_record", "--record", "10", "--key", "11", names=("--key", "--record 10"))
    yield typed("key_reaches_beyond_the_record", "--record", "10", "--key", "5:6", names=("--key 5:6", "--record 10"))
    yield typed("key_offset_beyond_the_record", "--record", "10", "--key", "10:1", names=("--key 10:1",))
    yield typed("key_sum_above_32_bits", "--record", "10", "--key", "1073741824:1073741824", names=("--key",))
    yield typed("key_number_above_32_bits", "--record", "10", "--key", "4294967296:1", names=("4294967296",))
    yield typed("key_without_record", "--key", "5", names=("--record",))
    for i, text in enumerate(("0", "3:0", ":5", "5:", "", "-1", "1:-1", "a", "1:2:3", " 1", "0x1")):
        yield typed(f"key_is_no_range_{i}", "--record", "10", "--key=" + text, names=("--key",))
    for i, text in enumerate(("0", "-1", "ten", "1.5", "", "4294967297", "1073741825")):
        yield typed(f"size_is_no_size_{i}", "--record=" + text, names=("--record",))
    yield typed("size_is_missing", "--record", names=("--record",))


def all_cases():
    rnd = random.Random(1998)
    yield from good(rnd)
    yield from compressed(rnd)
    yield from wrong(rnd)
