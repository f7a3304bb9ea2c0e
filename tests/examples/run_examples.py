#!/usr/bin/env python3
"""Runs each example on a small input made here and compares its output with an answer computed in Python, by other means.

usage: run_examples.py --bin FOLDER_OF_EXAMPLES [--cluster ROPEWALK] [--only NAME]
"""

import argparse
import collections
import math
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../batch"))
import cluster as dev_cluster  # noqa: E402

WORDS = ["rope", "walk", "strand", "hemp", "tar", "a", "the", "of", "twist", "yarn", "café", "naïve"]


class Example:
    """Runs a binary in a folder of its own and reads what it wrote."""

    def __init__(self, bins, environment, folder, seed):
        self.bins, self.environment, self.folder = bins, environment, folder
        self.random = random.Random(seed)

    def write(self, name, lines):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        return path

    def text(self, lines):
        return [" ".join(self.random.choice(WORDS) for _ in range(self.random.randrange(12))) for _ in range(lines)]

    def run(self, name, *args):
        done = subprocess.run(
            [os.path.join(self.bins, name), *map(str, args)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"
        return done.stdout

    def lines(self, output="out"):
        folder = os.path.join(self.folder, output)
        assert os.path.exists(os.path.join(folder, "_SUCCESS")), "no _SUCCESS"
        found = []
        for part in sorted(n for n in os.listdir(folder) if n.startswith("part-")):
            with open(os.path.join(folder, part), encoding="utf-8", newline="\n") as file:
                found += file.read().split("\n")[:-1]
        return found


def word_count(e):
    text = e.text(3000)
    e.write("in/a.txt", text[:1000])
    e.write("in/b.txt", text[1000:])
    e.run("word_count", "in", "out")
    counts = collections.Counter(word for line in text for word in line.split(" ") if word)
    assert sorted(e.lines()) == sorted(f"{w}\t{n}" for w, n in counts.items())


def sort(e):
    text = e.text(5000)
    e.write("in/a.txt", text)
    e.run("sort", "in", "out")
    assert [line.encode() for line in e.lines()] == sorted(line.encode() for line in text)


def inverted_index(e):
    documents = {f"doc{i}": " ".join(e.text(5)) for i in range(200)}
    e.write("in.txt", [f"{name}\t{text}" for name, text in documents.items()] + ["a line without a tab is no document"])
    e.run("inverted_index", "in.txt", "out")
    want = [f"{word}\t" + " ".join(sorted(d for d, text in documents.items() if word in text.split())) for word in WORDS]
    assert sorted(e.lines()) == sorted(want)


def join_logs(e):
    users = {f"user{i}": e.random.choice(["DE", "FR", "IT"]) for i in range(300)}
    visits = [f"user{e.random.randrange(400)} /page/{e.random.randrange(50)}" for _ in range(5000)]  # some users are in no table
    e.write("visits.txt", visits)
    e.write("users.txt", [f"{user} {country}" for user, country in users.items()])
    e.run("join_logs", "visits.txt", "users.txt", "out")
    counts = collections.Counter(users[user] for user in (v.split()[0] for v in visits) if user in users)
    assert sorted(e.lines()) == sorted(f"{country}\t{n}" for country, n in counts.items())


def page_rank(e):
    pages, rounds = 80, 8
    edges = [(p, e.random.randrange(pages // 2)) for p in range(pages) for _ in range(1 + e.random.randrange(6))]
    e.write("edges.txt", [f"{a} {b}" for a, b in edges])
    e.run("page_rank", "edges.txt", rounds, "out")
    targets = collections.defaultdict(list)
    for a, b in edges:
        targets[a].append(b)
    ranks = [1 / pages] * pages
    for _ in range(rounds):
        following = [0.15 / pages] * pages
        for page, links in targets.items():
            for target in links:
                following[target] += 0.85 * ranks[page] / len(links)
        ranks = following
    got = dict(line.split("\t") for line in e.lines())
    assert sorted(map(int, got)) == list(range(pages)), "each page once"
    for page, rank in enumerate(ranks):
        assert abs(float(got[str(page)]) - rank) < 1e-12, f"page {page}: {got[str(page)]}, expected {rank}"
    assert abs(sum(ranks) - 1) < 1e-9


def k_means(e):
    k, rounds = 4, 6
    hearts = [(0, 0), (50, 0), (0, 50), (50, 50)]
    points = [(round(x + e.random.gauss(0, 6), 3), round(y + e.random.gauss(0, 6), 3)) for _ in range(500) for x, y in hearts]
    e.write("points.txt", [f"{x} {y}" for x, y in points])
    got = [tuple(map(float, line.split())) for line in e.run("k_means", "points.txt", k, rounds).splitlines()]
    centres = points[:k]
    for _ in range(rounds):
        groups = [[] for _ in range(k)]
        for p in points:
            groups[min(range(k), key=lambda i: (centres[i][0] - p[0]) ** 2 + (centres[i][1] - p[1]) ** 2)].append(p)
        centres = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) if g else c for g, c in zip(groups, centres)]
    assert len(got) == k
    for a, b in zip(got, centres):
        assert abs(a[0] - b[0]) < 1e-5 and abs(a[1] - b[1]) < 1e-5, f"{got}, expected {centres}"


def secondary_sort(e):
    readings = [(f"s{e.random.randrange(20)}", e.random.randrange(-500, 500), i) for i in range(4000)]
    e.write("in.txt", [f"{station} {time} {value}" for station, time, value in readings])
    e.run("secondary_sort", "in.txt", "out")
    want = sorted(readings, key=lambda r: (r[0].encode(), r[1], r[2]))  # equal ones in the order of the input
    assert e.lines() == [f"{station} {time} {value}" for station, time, value in want]


def mapreduce_chain(e):
    text = e.text(2000) + [f"rare{i}" for i in range(37)]
    e.write("in.txt", text)
    e.run("mapreduce_chain", "in.txt", "out")
    counts = collections.Counter(word for line in text for word in line.split(" ") if word)
    how_often = collections.Counter(counts.values())
    assert sorted(e.lines()) == sorted(f"{n}\t{words}" for n, words in how_often.items())


def best_weights(samples, decay):
    """Logistic regression of [(features, 0 or 1)] by Newton's method: the weights that minimise the mean loss + decay / 4 |w|^2, and it."""
    n, size = len(samples), len(samples[0][0])
    w = [0.0] * size
    for _ in range(30):
        gradient = [decay / 2 * x for x in w]
        curve = [[decay / 2 if i == j else 0.0 for j in range(size)] for i in range(size)]
        for x, label in samples:
            p = 1 / (1 + math.exp(-sum(a * b for a, b in zip(w, x))))
            for i in range(size):
                gradient[i] += (p - label) * x[i] / n
                for j in range(size):
                    curve[i][j] += p * (1 - p) * x[i] * x[j] / n
        for i in range(size):  # curve * step = gradient, by elimination: the curve is positive definite
            for row in range(i + 1, size):
                factor = curve[row][i] / curve[i][i]
                gradient[row] -= factor * gradient[i]
                for j in range(i, size):
                    curve[row][j] -= factor * curve[i][j]
        step = [0.0] * size
        for i in reversed(range(size)):
            step[i] = (gradient[i] - sum(curve[i][j] * step[j] for j in range(i + 1, size))) / curve[i][i]
        w = [a - b for a, b in zip(w, step)]
    scores = [sum(a * b for a, b in zip(w, x)) for x, _ in samples]
    loss = sum(math.log1p(math.exp(-score if label else score)) for score, (_, label) in zip(scores, samples)) / n
    return w, loss


def train_on_dataset(e):
    lines = []
    for _ in range(400):
        words = [e.random.choice(WORDS) for _ in range(e.random.randrange(1, 12))]
        score = words.count("rope") + words.count("hemp") - words.count("tar") - words.count("the") + e.random.gauss(0, 0.7)
        lines.append((int(score > 0), words))
    e.write("in.txt", [f"{label}\t{' '.join(words)}" for label, words in lines])
    first, *weights = e.run("train_on_dataset", "in.txt", len(WORDS), 250, 2).splitlines()
    samples = [([words.count(word) for word in WORDS] + [1], label) for label, words in lines]
    expected, loss = best_weights(samples, 0.05)
    right = sum((sum(a * b for a, b in zip(expected, x)) > 0) == bool(label) for x, label in samples)
    got_loss, got_right = float(first.split()[1].rstrip(",")), int(first.split()[2])
    assert abs(got_loss - loss) < 1e-4 and got_right == right, f"{first}; expected {loss}, {right}"
    got = dict(line.rsplit(" ", 1) for line in weights)
    assert sorted(got) == sorted(WORDS), got
    for word, weight in zip(WORDS, expected):
        assert abs(float(got[word]) - weight) < 2e-3, f"{word}: {got[word]}, expected {weight}"


def train_packages(e):
    """Sections that the dependencies tell, and of the words only one in two."""
    sections, names = ["games", "libs", "text"], [f"p{i}" for i in range(600)]
    of = {name: sections[i % 3 if i % 6 else 1] for i, name in enumerate(names)}
    lines, edges, words = [], set(), set()
    for name in names:
        others = [e.random.choice(names) for _ in range(30)]
        needs = [other for other in others if of[other] == of[name] and other != name][:5]
        said = of[name] if e.random.random() < 0.5 else e.random.choice(sections)
        text = [said + "word", *e.random.sample(WORDS[:4], 2)]
        words.update(text)
        edges.update(frozenset((name, other)) for other in needs)
        lines += [f"Package: {name}", "Version: 1.0", f"Section: {e.random.choice(['', 'contrib/'])}{of[name]}",
                  f"Pre-Depends: {needs[0]}" if needs else "Suggests: p0",
                  "Depends: " + ", ".join(["nowhere", *(f"{a} (>= 2:1.0) | virtual{i}" for i, a in enumerate(needs[1:]))]),
                  "Tag: role::program,", " Section: none", f"Description: {' '.join(text)} (1)", ""]
    lines += ["Package: p1", "Section: other", "", "Package: of-no-section", "Depends: p1", ""]
    e.write("packages.txt", lines)
    first, _, *rows = e.run("train_packages", "packages.txt", 2, 300).splitlines()
    assert first == f"600 packages of 3 sections, {len(edges)} dependencies, {len(words)} words", first
    found = {row.split("%")[0].rsplit(None, 1)[0]: float(row.split("%")[0].rsplit(None, 1)[1]) for row in rows}
    majority, mlp, gcn, sage, sampled = found.values()
    assert list(found)[0] == 'always "libs"' and 100 / 3 < majority < 60, rows
    assert majority < mlp < 80 and gcn > mlp + 10 and sage > mlp + 10 and abs(sampled - sage) < 8, rows


EXAMPLES = (word_count, sort, inverted_index, join_logs, page_rank, k_means, secondary_sort, mapreduce_chain, train_on_dataset,
            train_packages)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--cluster")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=20261129)
    args = parser.parse_args()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROPEWALK_")}
    failed = ran = 0
    with tempfile.TemporaryDirectory(prefix="ropewalk-examples-") as work:
        master = dev_cluster.DevCluster(args.cluster, os.path.join(work, "cluster")) if args.cluster else None
        try:
            for example in EXAMPLES:
                if args.only not in example.__name__:
                    continue
                folder = os.path.join(work, example.__name__)
                os.makedirs(folder)
                ran += 1
                try:
                    env = environment | (master.environment() if master else {})
                    example(Example(os.path.abspath(args.bin), env, folder, args.seed))
                    print(f"ok {example.__name__}")
                except (AssertionError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"FAILED {example.__name__} (seed {args.seed}): {str(error)[:3000]}")
        finally:
            if master:
                master.stop()
    print(f"{ran - failed} passed, {failed} failed")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    dev_cluster.exit_on_sigterm()
    sys.exit(main())
