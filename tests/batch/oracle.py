"""What word count and sort must make of an input, written without a look at the engine.

A word is a maximal run of bytes that are not ASCII white space (space, \\t, \\n, \\v, \\f, \\r), which is what bytes.split() cuts at.
A line ends at \\n; a last line without one is a line; \\r is data.
"""

import collections


def lines(text):
    parts = text.split(b"\n")
    return parts[:-1] if parts[-1] == b"" else parts


def wordcount(texts):
    """The sorted lines word<TAB>count of all texts (each one file as a reader should see it)."""
    count = collections.Counter()
    for text in texts:
        count.update(text.split())
    return sorted(b"%s\t%d\n" % item for item in count.items())


def sort(texts):
    # Compared without its end: an empty line comes before one that begins with NUL.
    return [line + b"\n" for line in sorted(line for text in texts for line in lines(text))]


def sort_records(texts, records):
    """The bytes of all records in the order of their keys; Python's sort is stable, also when it is reversed."""
    whole = b"".join(texts)
    end = records.key_offset + (records.key_bytes or records.bytes)
    cut = [whole[at : at + records.bytes] for at in range(0, len(whole), records.bytes)]
    return b"".join(sorted(cut, key=lambda record: record[records.key_offset : end], reverse=records.reverse))


def expected(job, texts):
    return wordcount(texts) if job == "wordcount" else sort(texts)
