"""Names, globs, folders, links, rights, places of the output, and what is typed wrongly."""

import os
import random
import socket
import subprocess

from case import Case, Entry, Refusal, text_case

ODD_NAMES = [
    b"with space.txt",
    b" leading and trailing ",
    b"new\nline.txt",
    b"tab\there",
    "ünï-日本.txt".encode(),
    b"latin1-\xe9.txt",
    b"-dash",
    b"--output=x",
    b"*star*",
    b"[abc].txt",
    b"question?.txt",
    b"back\\slash.txt",
    b"quote'\".txt",
    b"$HOME",
    b"~tilde",
    b"{a,b}.txt",
    b"percent%s%n.txt",
    b"#hash",
    b"semi;colon",
    b"a&b",
    b"(paren)",
    b"x" * 255,
    b"dot.in.the.middle",
    b"no_suffix",
    b"\x01control",
    b"comma,name",
    b"plus+equals=",
    b"at@sign",
    b"colon:name",
    b"file:",
    b"UPPER.TXT",
    b"back`tick",
]


def names():
    yield Case("odd_names", [Entry(b"input/" + name, b"name%d common\n" % i) for i, name in enumerate(ODD_NAMES)])
    yield Case(
        "odd_names_of_folders", [Entry(b"input/" + name + b"/inner.txt", b"name%d common\n" % i) for i, name in enumerate(ODD_NAMES)]
    )
    for i, name in enumerate(ODD_NAMES):
        typed = b"./" + name if name.startswith(b"-") else name
        yield Case(
            f"odd_name_typed_{i}",
            [Entry(name, b"typed outright\n"), Entry(b"input/other.txt", None, b"not asked for\n")],
            inputs=(typed,),
            jobs=("wordcount",),
        )
    yield Case("deep_folders", [Entry(b"input/" + b"/".join([b"d"] * depth) + b"/f.txt", b"depth %d\n" % depth) for depth in (1, 10, 60)])
    yield Case("same_name_in_many_folders", [Entry(b"input/%d/part" % i, b"folder %d\n" % i) for i in range(50)])
    yield Case("many_small_files", [Entry(b"input/%04d.txt" % i, b"w%d common\n" % (i % 97)) for i in range(1500)])
    # Byte order of relative paths, not of names or of locale: only sort's ties could show it, so the words name the files.
    yield Case(
        "hidden_and_marker_files",
        [
            Entry(b"input/seen.txt", b"seen\n"),
            Entry(b"input/.hidden", None, b"never\n"),
            Entry(b"input/_SUCCESS", None, b"never\n"),
            Entry(b"input/_temporary/x", None, b"never\n"),
            Entry(b"input/.git/config", None, b"never\n"),
            Entry(b"input/sub/_log", None, b"never\n"),
            Entry(b"input/sub/a_b.c", b"seen too\n"),
        ],
    )
    yield Case(
        "hidden_file_named_outright",
        [Entry(b".hidden", b"asked for\n"), Entry(b"_under", b"asked for too\n")],
        inputs=(b".hidden", b"_under"),
    )


def patterns():
    files = [
        Entry(b"in/a.txt", b"a\n"),
        Entry(b"in/b.txt", b"b\n"),
        Entry(b"in/c.log", None, b"not this\n"),
        Entry(b"in/.d.txt", None, b"hidden\n"),
        Entry(b"in/_e.txt", None, b"marker\n"),
    ]
    yield Case("glob_star", files, inputs=(b"in/*.txt",))
    yield Case("glob_question", files, inputs=(b"in/?.txt",))
    yield Case("glob_set", files, inputs=(b"in/[ab].txt",))
    yield Case(
        "glob_in_the_folder",
        [Entry(b"x1/a.txt", b"1\n"), Entry(b"x2/a.txt", b"2\n"), Entry(b"y/a.txt", None, b"no\n")],
        inputs=(b"x*/a.txt",),
    )
    yield Case(
        "glob_that_gives_folders",
        [Entry(b"x1/a.txt", b"1\n"), Entry(b"x2/sub/a.txt", b"2\n"), Entry(b"y/a.txt", None, b"no\n")],
        inputs=(b"x?",),
    )
    yield Case(
        "path_wins_over_pattern",
        [Entry(b"f[12].txt", b"the path\n"), Entry(b"f1.txt", None, b"no\n"), Entry(b"f2.txt", None, b"no\n")],
        inputs=(b"f[12].txt",),
    )
    yield Case("path_with_star_wins", [Entry(b"f*.txt", b"the path\n"), Entry(b"f1.txt", None, b"no\n")], inputs=(b"f*.txt",))
    yield Case("folder_with_brackets_wins", [Entry(b"d[1]/a.txt", b"the folder\n"), Entry(b"d1/a.txt", None, b"no\n")], inputs=(b"d[1]",))
    yield Case("glob_beside_a_name_with_brackets", [Entry(b"d/[x].txt", b"1\n"), Entry(b"d/y.txt", b"2\n")], inputs=(b"d/*.txt",))
    yield Case("several_inputs", [Entry(b"a.txt", b"a\n"), Entry(b"d/b.txt", b"b\n"), Entry(b"g1", b"c\n")], inputs=(b"a.txt", b"d", b"g?"))
    for name, typed in (
        ("glob_without_match", b"in/*.csv"),
        ("missing_file", b"in/gone.txt"),
        ("missing_folder", b"gone/x"),
        ("unclosed_set", b"in/[ab"),
        ("file_used_as_folder", b"in/a.txt/b"),
    ):
        yield Case(name, files, inputs=(typed,), refusal=Refusal(codes=(3,), names=(typed.decode(),)))
    yield Case(
        "one_missing_of_three", files, inputs=(b"in/a.txt", b"in/gone.txt", b"in/b.txt"), refusal=Refusal(codes=(3,), names=("gone.txt",))
    )
    yield Case("missing_name_with_newline", inputs=(b"go\nne.txt",), refusal=Refusal(codes=(3,), names=("ne.txt",)))
    yield Case("empty_input_name", inputs=(b"",), refusal=Refusal(codes=(2, 3)))
    # The only files are skipped ones: an empty result is right, but it has to say why.
    yield Case(
        "only_hidden_files",
        [Entry(b"input/.a", None, b"x\n"), Entry(b"input/_b", None, b"x\n")],
        or_refusal=True,
        refusal=Refusal(codes=(3,), names=("input",)),
    )


def links():
    def link(target, name):
        return lambda folder: os.symlink(target, os.path.join(folder, name))

    yield Case("link_to_a_file", [Entry(b"real.txt", b"linked\n")], prepare=link(b"../real.txt", b"input/link.txt"))
    yield Case("link_named_outright", [Entry(b"real.txt", b"linked\n")], inputs=(b"link.txt",), prepare=link(b"real.txt", b"link.txt"))
    yield Case("link_to_the_input_folder", [Entry(b"real/a.txt", b"linked\n")], inputs=(b"link",), prepare=link(b"real", b"link"))
    yield Case(
        "dangling_link_named_outright",
        inputs=(b"link.txt",),
        prepare=link(b"gone", b"link.txt"),
        refusal=Refusal(codes=(1, 3), names=("link.txt",)),
    )
    yield Case(
        "dangling_link_in_a_folder",
        [Entry(b"input/a.txt", b"a\n")],
        prepare=link(b"gone", b"input/dangling"),
        refusal=Refusal(codes=(1, 3), names=("dangling",)),
    )
    two = [Entry(b"x1/a.txt", b"a\n"), Entry(b"x2/b.txt", None, b"b\n")]
    for name, place, typed in (
        ("dangling_link_in_a_pattern", b"x2/a.txt", b"x*/a.txt"),
        ("dangling_link_by_its_suffix", b"x2/c.txt", b"x*/[ac].txt"),
        ("dangling_folder_in_a_pattern", b"x3", b"x*/a.txt"),
        ("link_to_itself_in_a_pattern", b"x2/gone", b"x*/[ag]*"),
    ):
        yield Case(name, two, inputs=(typed,), prepare=link(b"gone", place), refusal=Refusal(codes=(1,), names=(place.decode(),)))
    # A size of 0, and content.
    yield Case("file_of_proc", inputs=(b"/proc/version",), refusal=Refusal(codes=(1,), names=("/proc/version", "0 bytes")))
    yield Case(
        "link_to_a_file_of_proc",
        [Entry(b"input/a.txt", b"a\n")],
        prepare=link(b"/proc/version", b"input/link"),
        refusal=Refusal(codes=(1,), names=("input/link", "0 bytes")),
    )
    yield Case(
        "circle_of_links",
        [Entry(b"input/a.txt", b"a\n")],
        prepare=link(b".", b"input/circle"),
        or_refusal=True,
        refusal=Refusal(codes=(1, 3), names=("circle",)),
        timeout_s=30,
    )
    # Reading from a pipe that nobody writes would hang for ever.
    yield Case(
        "pipe_in_a_folder",
        [Entry(b"input/a.txt", b"a\n")],
        prepare=lambda folder: os.mkfifo(os.path.join(folder, b"input/pipe")),
        or_refusal=True,
        refusal=Refusal(codes=(1, 3), names=("pipe",)),
        timeout_s=30,
    )
    yield Case(
        "pipe_named_outright",
        inputs=(b"pipe",),
        prepare=lambda folder: os.mkfifo(os.path.join(folder, b"pipe")),
        refusal=Refusal(codes=(1, 3), names=("pipe",)),
        timeout_s=30,
    )

    def bind(folder):
        here = os.getcwd()
        os.chdir(os.path.join(folder, b"input"))  # socket addresses are short
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("socket")
        listener.close()
        os.chdir(here)

    yield Case(
        "socket_in_a_folder",
        [Entry(b"input/a.txt", b"a\n")],
        prepare=bind,
        or_refusal=True,
        refusal=Refusal(codes=(1, 3), names=("socket",)),
    )


def rights():
    def closed(path):
        return lambda folder: os.chmod(os.path.join(folder, path), 0)

    def opened(path):
        return lambda folder: os.chmod(os.path.join(folder, path), 0o755)

    yield Case(
        "unreadable_file",
        [Entry(b"input/a.txt", b"a\n"), Entry(b"input/secret.txt", None, b"b\n")],
        prepare=closed(b"input/secret.txt"),
        cleanup=opened(b"input/secret.txt"),
        as_nobody=True,
        refusal=Refusal(codes=(1,), names=("secret.txt",)),
    )
    yield Case(
        "unreadable_folder",
        [Entry(b"input/a.txt", b"a\n"), Entry(b"input/closed/b.txt", None, b"b\n")],
        prepare=closed(b"input/closed"),
        cleanup=opened(b"input/closed"),
        as_nobody=True,
        refusal=Refusal(codes=(1,), names=("closed",)),
    )
    for i, typed in enumerate((b"input/*/x.txt", b"input/*/*.txt", b"input/**/x.txt", b"input/closed/sub/*.txt", b"input/*")):
        yield Case(
            f"unreadable_folder_in_a_pattern_{i}",
            [Entry(b"input/open/x.txt", b"a\n")] + [Entry(b"input/closed/" + name, None, b"b\n") for name in (b"x.txt", b"sub/x.txt")],
            inputs=(typed,),
            prepare=closed(b"input/closed"),
            cleanup=opened(b"input/closed"),
            as_nobody=True,
            refusal=Refusal(codes=(1,), names=("input/closed",)),
        )
    yield Case(
        "output_to_replace_not_writable",
        [Entry(b"input/a.txt", b"a\n")],
        output=b"out",
        flags=("--overwrite",),
        as_nobody=True,
        keep_output=True,
        prepare=lambda folder: os.mkdir(os.path.join(folder, b"out"), 0o555),
        refusal=Refusal(codes=(1,), names=("out",)),
    )
    yield Case(
        "output_place_not_writable",
        [Entry(b"input/a.txt", b"a\n")],
        output=b"place/out",
        as_nobody=True,
        prepare=lambda folder: os.mkdir(os.path.join(folder, b"place"), 0o555),
        refusal=Refusal(codes=(1,), names=("place",)),
    )


def expect_file(path, content):
    def verify(folder):
        with open(os.path.join(folder, path), "rb") as file:
            assert file.read() == content, f"{path} was changed"

    return verify


def outputs():
    one = [Entry(b"input/a.txt", b"b a\nc\n")]

    def old_output(folder):
        os.makedirs(os.path.join(folder, b"out"))
        for name in (b"part-00000", b"part-00077", b"mine.txt"):
            with open(os.path.join(folder, b"out", name), "wb") as file:
                file.write(b"old\t1\n")

    def no_stale(folder):
        left = sorted(os.listdir(os.path.join(folder, b"out")))
        assert b"part-00077" not in left and b"mine.txt" not in left, f"stale files are left: {left}"

    yield Case(
        "output_exists",
        one,
        prepare=old_output,
        keep_output=True,
        verify=expect_file(b"out/part-00077", b"old\t1\n"),
        refusal=Refusal(codes=(1, 2), names=("out",)),
    )
    yield Case(
        "output_exists_empty",
        one,
        prepare=lambda folder: os.mkdir(os.path.join(folder, b"out")),
        keep_output=True,
        refusal=Refusal(codes=(1, 2), names=("out",)),
    )
    yield Case("output_exists_and_overwrite", one, prepare=old_output, flags=("--overwrite",), verify=no_stale)
    yield Case("overwrite_of_nothing", one, flags=("--overwrite",))
    yield Case(
        "output_is_a_file",
        one,
        prepare=lambda folder: open(os.path.join(folder, b"out"), "w").write("mine"),
        keep_output=True,
        verify=expect_file(b"out", b"mine"),
        refusal=Refusal(codes=(1, 2), names=("out",)),
    )
    yield Case(
        "output_is_a_file_and_overwrite",
        one,
        prepare=lambda folder: open(os.path.join(folder, b"out"), "w").write("mine"),
        flags=("--overwrite",),
        keep_output=True,
        verify=expect_file(b"out", b"mine"),
        refusal=Refusal(codes=(1, 2), names=("out",)),
    )
    yield Case("output_parent_missing", one, output=b"gone/out", refusal=Refusal(codes=(1, 2, 3), names=("gone",)))
    yield Case(
        "output_parent_is_a_file",
        one,
        output=b"input/a.txt/out",
        keep_output=True,
        verify=expect_file(b"input/a.txt", b"b a\nc\n"),
        refusal=Refusal(codes=(1, 2, 3), names=("a.txt",)),
    )
    for name, output, flags in (
        ("output_is_the_input", b"input", ()),
        ("output_is_the_input_and_overwrite", b"input", ("--overwrite",)),
        ("output_in_the_input_and_overwrite", b"input/out", ("--overwrite",)),
        ("output_in_the_input", b"input/out", ()),
        ("output_holds_the_input_and_overwrite", b".", ("--overwrite",)),
        ("output_is_the_input_otherwise_spelt", b"input/../input/.", ("--overwrite",)),
        ("output_is_an_input_file", b"input/a.txt", ("--overwrite",)),
    ):
        yield Case(
            name,
            one,
            output=output,
            flags=flags,
            keep_output=True,
            verify=expect_file(b"input/a.txt", b"b a\nc\n"),
            refusal=Refusal(codes=(1, 2)),
        )
    for name, typed in (
        ("url", b"file://{folder}/input"),
        ("pattern", b"inp*"),
        ("url_of_a_pattern", b"file://{folder}/i?put"),
        ("pattern_of_folders", b"input/**"),
    ):
        yield Case(
            f"output_in_the_input_by_a_{name}",
            one,
            inputs=(typed,),
            output=b"input/out",
            flags=("--overwrite",),
            verify=expect_file(b"input/a.txt", b"b a\nc\n"),
            refusal=Refusal(codes=(1, 2), names=("input",)),
        )
    for i, output in enumerate((b"out/.", b"out/..", b"out/../out/.")):
        yield Case(
            f"output_ends_in_dots_{i}",
            one,
            output=output,
            flags=("--overwrite",),
            prepare=old_output,
            keep_output=True,
            verify=expect_file(b"out/part-00077", b"old\t1\n"),
            refusal=Refusal(codes=(1, 2), names=(output.decode(),)),
        )
    yield Case(
        "output_is_the_input_by_a_link",
        one,
        output=b"link",
        flags=("--overwrite",),
        keep_output=True,
        prepare=lambda folder: os.symlink(b"input", os.path.join(folder, b"link")),
        verify=expect_file(b"input/a.txt", b"b a\nc\n"),
        refusal=Refusal(codes=(1, 2)),
    )
    for i, output in enumerate(
        (b"out/", b"./out", b"input/../out2", b"with space", b"new\nline", "ünï".encode(), b"[1]", b"*", b"a.gz", b"x" * 180)
    ):
        yield Case(f"output_name_{i}", one, output=output)
    yield Case("output_starts_with_input_name", one, output=b"input2")
    yield Case("output_absolute", one, output=b"{folder}/out")


def full_disk():
    def mount(folder):
        os.mkdir(os.path.join(folder, b"small"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", os.path.join(folder, b"small")], check=True)

    def unmount(folder):
        subprocess.run(["umount", "-l", os.path.join(folder, b"small")], check=True)

    def nothing_left(folder):
        left = os.listdir(os.path.join(folder, b"small"))
        assert left == [], f"left on the full disk: {left}"

    rnd = random.Random(5)
    text = b"".join(b"%020x %020x\n" % (rnd.getrandbits(80), rnd.getrandbits(80)) for _ in range(40_000))
    yield text_case(
        "full_disk",
        text,
        output=b"small/out",
        prepare=mount,
        cleanup=unmount,
        verify=nothing_left,
        needs=("mount",),
        refusal=Refusal(codes=(1,), names=("small",)),
    )
    yield text_case(
        "output_is_a_mount_point",
        b"a b\n",
        output=b"small",
        flags=("--overwrite",),
        prepare=mount,
        cleanup=unmount,
        keep_output=True,
        needs=("mount",),
        refusal=Refusal(codes=(1,), names=("small", "mounted")),
    )
    yield text_case("full_disk_just_fits", b"a b\n", output=b"small/out", prepare=mount, cleanup=unmount, needs=("mount",))


def typed_wrongly():
    one = [Entry(b"input/a.txt", b"a\n")]

    def typed(name, *command, codes=(2,), names=(), **more):
        return Case(
            name,
            one,
            exact_command=tuple(c.encode() for c in command),
            refusal=Refusal(codes=codes, names=names),
            jobs=("wordcount",),
            **more,
        )

    yield typed("unknown_job", "wordcuont", "input", "-o", "out", codes=(2, 3), names=("wordcuont",))
    yield typed("no_output", "wordcount", "input")
    yield typed("no_input", "wordcount", "-o", "out")
    yield typed("unknown_flag", "wordcount", "input", "-o", "out", "--paritions", "3", names=("--paritions",))
    yield typed("partitions_not_a_number", "wordcount", "input", "-o", "out", "--partitions", "many", names=("many",))
    yield typed("partitions_negative", "wordcount", "input", "-o", "out", "--partitions", "-3", names=("-3",))
    yield typed("threads_zero", "wordcount", "input", "-o", "out", "--threads", "0")
    yield typed("threads_too_many_digits", "wordcount", "input", "-o", "out", "--threads", "99999999999999999999")
    yield typed("nobody_listens", "wordcount", "input", "-o", "out", "--master", "127.0.0.1:1", codes=(4, 5), embedded_only=True)
    yield typed("master_without_port", "wordcount", "input", "-o", "out", "--master", "nonsense", codes=(2, 4, 5), embedded_only=True)


def all_cases():
    for family in (names(), patterns(), links(), rights(), outputs(), full_disk(), typed_wrongly()):
        yield from family
