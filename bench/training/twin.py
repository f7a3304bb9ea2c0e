#!/usr/bin/env python3
"""A training of a job file by PyTorch: the model, batches, rates and first values that `ropewalk train` has of it.

usage: twin.py JOB.toml FIRST.safetensors [--seed N]

FIRST: a checkpoint of the house of before its first update. One thread. One line of JSON, named as that of
`ropewalk train --output json`.
"""

import argparse
import gzip
import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import recipe
import torch_peer

FASHION = "/usr/share/datasets/fashion-mnist"


class Cnn(nn.Module):
    """28 x 28 pixels of one channel; mlrunner/models/convnets.h."""

    def __init__(self, maps, classes=10, hidden=128):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, maps, 3, padding=1, bias=False), nn.BatchNorm2d(maps)
        self.conv2, self.norm2 = nn.Conv2d(maps, 2 * maps, 3, padding=1, bias=False), nn.BatchNorm2d(2 * maps)
        self.linear, self.out = nn.Linear(2 * maps * 7 * 7, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2).flatten(1)
        return self.out(F.relu(self.linear(x)))


def load_cnn(net, ours):
    """Ours are (in, out), torch's (out, in)."""
    with torch.no_grad():
        for name in ("conv1", "conv2"):
            getattr(net, name).weight.copy_(ours.pop(name + "/w"))
        for name in ("norm1", "norm2"):
            getattr(net, name).weight.copy_(ours.pop(name + "/gain"))
            getattr(net, name).bias.copy_(ours.pop(name + "/bias"))
        for name in ("linear", "out"):
            getattr(net, name).weight.copy_(ours.pop(name + "/w").t())
            getattr(net, name).bias.copy_(ours.pop(name + "/b"))
    if ours:
        raise SystemExit(f"error[BENCH07] parameters differ: {sorted(ours)}")


def idx(folder, name):
    path = os.path.join(folder, name)
    with (gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")) as file:
        data = bytearray(file.read())
    dims = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * len(dims)).reshape(dims)


def fashion(data):
    """((images, labels) to train on, those that are held out); pixels have mean 0 and deviation 1."""
    folder = data["path"] or FASHION

    def part(prefix):
        pixels, labels = idx(folder, prefix + "-images-idx3-ubyte"), idx(folder, prefix + "-labels-idx1-ubyte")
        return ((pixels.double() / 255 - .2860) / .3530).float().unsqueeze(1), labels.long()

    return part("train"), part("t10k")


def text(data, length):
    """The same of stretches of characters side by side, and how many symbols there are; the last part is held out."""
    with open(data["path"], "rb") as file:
        everything = file.read()
    number = {byte: i for i, byte in enumerate(sorted(set(everything)))}
    ids = torch.tensor([number[byte] for byte in everything])
    cut = len(everything) - int(len(everything) * data["held_out"])

    def part(ids):
        count = (len(ids) - 1) // length
        return ids[:count * length].view(count, length), ids[1:count * length + 1].view(count, length)

    return part(ids[:cut]), part(ids[cut:]), len(number)


def parameters_of(path):
    """What is trained of a checkpoint: all but moments and statistics of the optimiser and of norms."""
    beside = ("/first_moment", "/second_moment", "/velocity", "/running_mean", "/running_variance", "/squares", "/average")
    return {name: torch.tensor(values).reshape(shape) for name, (shape, values) in recipe.tensors_of(path).items()
            if not name.endswith(beside) and not name.startswith("optimizer/")}


def optimizer_of(net, o):
    decayed = [p for p in net.parameters() if o["decay_of"] == "all" or p.dim() > 1]
    spared = [p for p in net.parameters() if o["decay_of"] != "all" and p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": spared, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if o["kind"] == "sgd":
        return torch.optim.SGD(groups, o["learning_rate"], momentum=o["momentum"], nesterov=o["nesterov"])
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[o["kind"]]
    return kind(groups, o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"])


def held_out(net, x, y):
    """(the sum of the losses of all labels, how many are right)"""
    loss = hits = 0
    net.eval()
    with torch.no_grad():
        for some, labels in zip(x.split(256), y.split(256)):
            logits = net(some)
            loss += F.cross_entropy(logits, labels.flatten(), reduction="sum").item()
            hits += (logits.argmax(-1) == labels.flatten()).sum().item()
    return loss, hits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("first")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    job = recipe.read(args.job)
    if args.seed is not None:
        job["train"]["seed"] = args.seed
    model, first = job["model"], parameters_of(args.first)
    if model["kind"] == "cnn":
        (x, y), kept_back = fashion(job["data"])
        net = Cnn(model["maps"])
        load_cnn(net, first)
    elif model["kind"] == "gpt" and not model["tied"]:
        (x, y), kept_back, vocabulary = text(job["data"], model["length"])
        net = torch_peer.Gpt(model | {"vocabulary": vocabulary}, fused=True)
        torch_peer.put_parameters(net, first)
    else:
        raise SystemExit(f"error[BENCH07] there is no twin of model.kind = \"{model['kind']}\" as this job has it")
    optimizer, steps, losses = optimizer_of(net, job["optimizer"]), recipe.steps_of(job["train"], len(x)), []
    begin = time.perf_counter()
    for step, ids in enumerate(recipe.batches(job["train"], len(x))):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(job["optimizer"], step, steps)
        ids = torch.tensor(ids)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x[ids]), y[ids].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    loss, hits = held_out(net, *kept_back)
    labels = kept_back[1].numel()
    print(json.dumps({"steps": steps, "loss": losses[-1], "losses": losses, "seconds": seconds, "held_out_loss": loss / labels,
                      "held_out_hits": hits, "held_out_labels": labels, "version": torch.__version__}))


if __name__ == "__main__":
    main()
