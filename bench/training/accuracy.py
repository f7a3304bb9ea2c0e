#!/usr/bin/env python3
"""What is learnt beside PyTorch: example trainings of `ropewalk train` and their twins, by what is held out at the end.

usage: accuracy.py [--build build] [--python PYTHON] [--works fashion,bible] [--seeds 1,2,3] [--set SECTION.KEY=VALUE ...] [--json FILE]

Works:
  fashion  examples/train/fashion_cnn.toml: a convolutional network on Fashion-MNIST. Bars: a median of 91% of the held-out labels right,
           in five epochs at most; the median within .3 points of the twin's.
  bible    examples/train/bible_gpt.toml: a GPT on the characters of the King James Bible. Bar: within .02 of the twin's held-out loss.
A twin (twin.py) reads the same job file and begins with the same parameters: a checkpoint of ours of before the first update. It takes the
same batches in the same order at the same rates, and counts the same held-out labels. Losses of the first steps must agree (BENCH06): later
ones part by rounding. Both sides compute with one thread.

--set: keys of the job, for both sides. --python: an interpreter that can import torch and numpy; none: no twin, and no bar beside one.
The exit code is 1 where a bar is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
JOBS = os.path.join(HERE, "../../examples/train")
FIRST_STEPS, FIRST_TOLERANCE = 5, 1e-3  # relative


def run(command, folder):
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=7200, check=False)
    if done.returncode != 0:
        sys.exit(f"error[BENCH02] {' '.join(command)} exited {done.returncode}\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def toml(value):
    return json.dumps(value)  # of what job files hold: texts, numbers, switches and lists of them


def write_job(name, settings, path):
    """The example with the settings over it, without its checkpoints."""
    with open(os.path.join(JOBS, name), "rb") as file:
        job = tomllib.load(file)
    job.pop("checkpoint", None)
    for setting in settings:
        key, value = setting.split("=", 1)
        section, key = key.split(".", 1)
        try:
            job.setdefault(section, {})[key] = tomllib.loads("x = " + value)["x"]
        except tomllib.TOMLDecodeError:
            job.setdefault(section, {})[key] = value
    with open(path, "w", encoding="utf-8") as file:
        for section, values in job.items():
            file.write(f"[{section}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in values.items()))
    return job


def bible(folder):
    path = os.path.join(folder, "bible.txt")
    if not os.path.exists(path):
        with open(path + ".new", "wb") as file:
            subprocess.run(["bible", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, stdout=file, check=True)
        os.rename(path + ".new", path)


class Work:
    def __init__(self, args, name, job, folder):
        self.args, self.name, self.folder = args, name, folder
        self.path = os.path.join(folder, name + ".toml")
        self.job = write_job(job, args.set, self.path)
        self.ours, self.twins = [], []

    def train(self, seed, settings):
        binary = os.path.join(os.path.abspath(self.args.build), "bin", "ropewalk")
        settings = [f"train.seed={seed}", "train.ranks=1", "train.threads=1", *settings]
        return run([binary, "train", self.path, "--output", "json", *(x for setting in settings for x in ("--set", setting))], self.folder)

    def pair(self, seed):
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            metrics = os.path.join(work, "metrics")
            ours = self.train(seed, ["train.metrics=" + metrics])
            with open(metrics, encoding="utf-8") as file:
                ours["losses"] = [line["loss"] for line in map(json.loads, file) if "learning_rate" in line]
            self.ours.append(ours)
            print(f"  seed {seed}: ropewalk {self.told(ours)}", flush=True)
            if self.args.python == "none":
                return
            # A step at the rate 0 changes no parameter, and its checkpoint has what they begin as.
            self.train(seed, ["train.steps=1", "optimizer.learning_rate=0", "checkpoint.folder=" + work])
            first = os.path.join(work, next(name for name in os.listdir(work) if name.startswith("step-")))
            twin = run([self.args.python, os.path.join(HERE, "twin.py"), self.path, first, "--seed", str(seed)], self.folder)
            self.twins.append(twin)
            print(f"          torch {twin['version']} {self.told(twin)}", flush=True)
        for step, (a, b) in enumerate(zip(ours["losses"][:FIRST_STEPS], twin["losses"])):
            if not abs(a - b) <= FIRST_TOLERANCE * abs(b):
                sys.exit(f"error[BENCH06] {self.name}, seed {seed}: the loss of step {step} is {a}, the twin has {b}")
        if ours["held_out_labels"] != twin["held_out_labels"] or ours["steps"] != twin["steps"]:
            sys.exit(f"error[BENCH06] {self.name}: the twin has made {twin['steps']} steps and counted {twin['held_out_labels']} labels")

    @staticmethod
    def accuracy(side):
        return 100 * side["held_out_hits"] / side["held_out_labels"]

    def told(self, side):
        return (f"{self.accuracy(side):.2f}% of {side['held_out_labels']} labels right, held-out loss {side['held_out_loss']:.4f}, "
                f"{side['steps']} steps in {side['seconds']:.0f} s")

    def bar(self, text, holds):
        print(f"  {text}: {'holds' if holds else 'MISSED'}")
        return holds

    def judge(self):
        """Whether all bars hold."""
        ours = statistics.median(map(self.accuracy, self.ours))
        loss = statistics.median(side["held_out_loss"] for side in self.ours)
        all_hold = True
        if self.name == "fashion":
            epochs = self.job["train"].get("epochs", 0)
            all_hold &= self.bar(f"median {ours:.2f}% in {epochs} epochs, bar 91.00% in 5 at most", ours >= 91 and 0 < epochs <= 5)
        if self.twins and self.name == "fashion":
            twin = statistics.median(map(self.accuracy, self.twins))
            all_hold &= self.bar(f"median {ours:.2f}% beside the twin's {twin:.2f}%, bar .30 apart", abs(ours - twin) <= .3)
        if self.twins and self.name == "bible":
            twin = statistics.median(side["held_out_loss"] for side in self.twins)
            all_hold &= self.bar(f"median loss {loss:.4f} beside the twin's {twin:.4f}, bar .0200 apart", abs(loss - twin) <= .02)
        return all_hold


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--python", default=os.environ.get("ROPEWALK_TORCH_PYTHON", "python3"))
    parser.add_argument("--works", default="fashion,bible")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = os.path.abspath(os.environ.get("ROPEWALK_BENCH_DIR") or os.path.expanduser("~/.cache/ropewalk-bench"))
    os.makedirs(folder, exist_ok=True)
    all_hold, results = True, {}
    for name in args.works.split(","):
        if name == "bible":
            bible(folder)
        work = Work(args, name, {"fashion": "fashion_cnn.toml", "bible": "bible_gpt.toml"}[name], folder)
        print(f"{name}: {json.dumps(work.job)}", flush=True)
        for seed in map(int, args.seeds.split(",")):
            work.pair(seed)
        all_hold &= work.judge()
        results[name] = {"job": work.job, "ropewalk": work.ours, "twins": work.twins}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
