"""Bytes: separators, borders, odd values, long words and lines, few and many keys, orders that break comparisons."""

import itertools
import random

from case import Case, Entry, text_case

WHITE = {"space": b" ", "tab": b"\t", "newline": b"\n", "vertical_tab": b"\v", "form_feed": b"\f", "carriage_return": b"\r"}


def separators():
    for name, byte in WHITE.items():
        yield text_case(f"separator_{name}_only", byte.join([b"one", b"two", b"one", b"three"]))
        yield text_case(f"separator_{name}_runs", byte * 7 + (byte * 3).join([b"a", b"b", b"a"] * 50) + byte * 5)
        yield text_case(f"nothing_but_{name}", byte * 5000)
    yield text_case("separators_of_all_kinds", b"".join(a + b"x" + b + b"y" + c for a, b, c in itertools.product(WHITE.values(), repeat=3)))
    # White space elsewhere (Latin-1, Unicode, the four separators of ASCII), but data here.
    yield text_case("no_separators", b"a\x85b a\xa0b a\x1cb a\x1db a\x1eb a\x1fb a\xe2\x80\x83b a\xe3\x80\x80b a\x00b a\x7fb a\x08b\n" * 3)
    yield text_case("each_byte_value_in_a_word", b"".join(b"<" + bytes([v]) + b"> " + bytes([v]) * 3 + b"\n" for v in range(256)))
    yield text_case("each_byte_value_as_first_and_last", *(bytes([v]) + b" mid " + bytes([v]) for v in range(256)))


def odd_bytes():
    yield text_case("nul_only", b"\x00" * 10000)
    yield text_case("nul_lines", b"\x00\n\x00\x00\n\n\x00a\na\x00\n" * 20)
    yield text_case("high_bytes_order", b"".join(bytes([v]) + b"\n" for v in reversed(range(256)) if v != 10))
    yield text_case("invalid_utf8", b"\xc3( \xe2\x28\xa1 \xf0\x28\x8c\x28 \xed\xa0\x80 \xfe \xff \xc0\xaf\n" * 10)
    yield text_case("bom_is_data", b"\xef\xbb\xbffirst\nfirst \xef\xbb\xbf\n", b"\xef\xbb\xbf")
    yield text_case("utf16_text", "héllo wörld\nhéllo\n".encode("utf-16"), "zwei Wörter\n".encode("utf-16-be"))
    yield text_case("crlf", b"a b\r\nb c\r\n\r\nc\r\n")
    yield text_case("carriage_returns_everywhere", b"\ra\r\rb\n\r\r\nc\r\n\r")
    yield text_case("line_feed_then_carriage_return", b"a\n\rb\n\rc\n\r")
    yield text_case("no_final_newline", b"x y", b"y", b"z\n", b"\n", b"last")
    yield text_case("tab_in_words_of_others", b"a\tb 1\n2\ta\n")
    yield text_case("control_z_and_escape", b"a\x1ab\n\x1b[31mred\x1b[0m\n\x04\n")


def tiny():
    alphabet = [b"a", b" ", b"\n", b"\r"]
    texts = [b"".join(t) for n in range(5) for t in itertools.product(alphabet, repeat=n)]
    yield text_case("all_files_up_to_four_bytes", *texts)
    for name, text in (
        ("empty", b""),
        ("newline", b"\n"),
        ("letter", b"z"),
        ("space", b" "),
        ("letter_newline", b"z\n"),
        ("newline_letter", b"\nz"),
    ):
        yield text_case(f"tiny_{name}", text)
    yield Case("no_file_at_all")
    yield text_case("empty_files_only", b"", b"", b"")
    yield text_case("empty_files_among_full", b"", b"one two\n", b"", b"two", b"")


def borders(rnd):
    """A word, a line end and a CR-LF at every distance of -2..+2 around every size that a reader might use as its buffer."""
    for power in (12, 15, 16, 17, 18, 20, 22):
        border = 1 << power
        texts = []
        for shift in (-2, -1, 0, 1, 2):
            head = filler(rnd, border + shift)
            texts += [head + b"word\nnext line\n", head[:-1] + b"\nfirst of line", head[:-1] + b"\r\ncr before", head]
        yield text_case(f"border_{border}", *(texts if power < 20 else texts[:8]))
    for threads in (1, 2, 3, 5, 8):
        # Short random lines, so that any cut into splits falls into words, on line ends and between CR and LF.
        text = b"".join(rnd.choice([b"ab", b"", b"c d", b"\r", b"efg\r", b"h"]) + b"\n" for _ in range(60000))
        yield text_case(f"splits_for_{threads}_threads", text, environment={"ROPEWALK_THREADS": str(threads)})
        yield text_case(f"one_line_for_{threads}_threads", b"k v " * 200000 + b"end", environment={"ROPEWALK_THREADS": str(threads)})
    yield text_case("all_line_ends", b"\n" * 1_500_000)


def filler(rnd, size):
    """`size` bytes of short words and lines."""
    words = [b"%x" % rnd.randrange(1 << 12) for _ in range(200)]
    parts, length = [], 0
    while length < size:
        part = rnd.choice(words) + (b"\n" if rnd.random() < 0.15 else b" ")
        parts.append(part)
        length += len(part)
    return b"".join(parts)[:size]


def long_ones(rnd):
    yield text_case("one_huge_word", b"w" * 3_000_000)
    yield text_case("one_huge_word_a_line", b"w" * 3_000_000 + b"\n")
    yield text_case("huge_line_between_short_ones", b"short\n" + b"y" * 5_000_000 + b"\nz\n")
    yield text_case("huge_lines_that_differ_at_the_end", *(b"p" * 1_200_000 + bytes([c]) + b"\n" for c in b"dbca"))
    yield text_case("huge_line_of_small_words", b"ab cd " * 700_000 + b"\nlast\n")
    sizes = sorted({s + d for s in (8, 12, 16, 32, 64, 128, 255, 4096, 65535, 65536, 1 << 20) for d in (-1, 0, 1)})
    yield text_case("words_of_border_sizes", b"\n".join(b"s" * s for s in sizes for _ in range(2)) + b"\n")
    yield text_case("lengths_0_to_300", b"".join(b"q" * n + b"\n" for n in rnd.sample(range(301), 301)))


def keys(rnd):
    yield text_case("one_key", b"same " * 300_000)
    yield text_case("one_key_many_partitions", b"same " * 1000, flags=("--partitions", "64"))
    yield text_case("three_keys_many_partitions", b"a b c\n" * 1000, flags=("--partitions", "50"))
    yield text_case("one_partition", filler(rnd, 300_000), flags=("--partitions", "1"))
    yield text_case("prime_partitions", filler(rnd, 300_000), flags=("--partitions", "13"))
    yield text_case("empty_with_partitions", b"", flags=("--partitions", "7"))
    yield text_case("all_keys_differ", b"".join(b"k%x\n" % k for k in rnd.sample(range(1 << 30), 100_000)))
    yield text_case("hot_key", b"".join(b"hot\n" if rnd.random() < 0.9 else b"c%d\n" % rnd.randrange(60000) for _ in range(200_000)))
    yield text_case("keys_that_are_numbers", b"".join(b"%d " % rnd.randrange(-500, 500) for _ in range(50_000)))
    yield text_case("keys_with_equal_prefix_hash_fodder", b"".join(b"%08d%08d\n" % (i % 7, i) for i in range(50_000)))


def orders(rnd):
    yield text_case("already_sorted", b"".join(b"%07d\n" % i for i in range(60_000)))
    yield text_case("reverse_sorted", b"".join(b"%07d\n" % i for i in range(60_000, 0, -1)))
    yield text_case("organ_pipe", b"".join(b"%07d\n" % min(i, 60_000 - i) for i in range(60_000)))
    yield text_case("all_lines_equal", b"the same line\n" * 200_000, flags=("--partitions", "8"))
    yield text_case("two_lines_only", b"b\n" * 70_000 + b"a\n" * 70_000)
    yield text_case("two_items_on_many_partitions", b"b\na\n", flags=("--partitions", "9"))
    # Comparisons by an 8-byte prefix must fall back to the rest, to the length, and treat bytes as unsigned.
    yield text_case(
        "differ_at_each_place", b"".join(b"m" * p + bytes([c]) + b"m" * (40 - p) + b"\n" for p in range(40) for c in (0, 31, 127, 128, 255))
    )
    yield text_case("prefixes_of_each_other", b"".join(b"a" * rnd.randrange(40) + b"\x00" * rnd.randrange(10) + b"\n" for _ in range(8000)))
    yield text_case("nul_against_end_of_line", b"a\na\x00\na\x00\x00\na\x00b\n\x00\n\n\x00\x00\nab\n" * 50)
    yield text_case("empty_lines_and_others", b"\n\nb\n\na\n\n" * 999)
    yield text_case("equal_lines_in_many_files", *([b"x\ny\nz\n" * 30] * 60))
    yield text_case("skewed_first_byte", b"".join(b"z%06d\n" % rnd.randrange(10**6) for _ in range(80_000)) + b"a\n")


def all_cases():
    rnd = random.Random(20261129)
    for family in (separators(), odd_bytes(), tiny(), borders(rnd), long_ones(rnd), keys(rnd), orders(rnd)):
        yield from family


def large_cases():
    yield text_case("line_of_100_mb", b"q" * 100_000_000 + b"\nend\n", timeout_s=600)
    yield text_case("line_of_100_mb_without_end", b"start\n" + b"r" * 100_000_000, timeout_s=600)
    yield text_case("word_of_64_mb_three_times", (b"w" * 64_000_000 + b" ") * 3 + b"\n", timeout_s=600)
    yield text_case("line_of_100_mb_of_words", b"alpha beta " * 10_000_000 + b"\nend\n", timeout_s=600)


def count_above_32_bits():
    """2^32 + 7 times the same word out of a few megabytes: many members, each one line. Only word count: sort would write it out."""
    import gzip

    member_words = 1 << 25
    member = gzip.compress(b"a " * member_words + b"\n", 9, mtime=0)
    rest = gzip.compress(b"a " * 7, 9, mtime=0)
    members = (1 << 32) // member_words
    case = Case("count_above_2_to_the_32", [Entry(b"input/a.gz", None, member * members + rest)], jobs=("wordcount",), timeout_s=900)
    case.expected_lines = [b"a\t%d\n" % ((1 << 32) + 7)]
    return case
