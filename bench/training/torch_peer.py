#!/usr/bin/env python3
"""Steps of training by PyTorch, from the parameters and batches that `bench_training prepare` wrote.

usage: torch_peer.py mlp|gpt eager|compiled plain|fused FOLDER steps=N ranks=N threads=N batch=N KEY=NUMBER...

fused: torch's own scaled_dot_product_attention instead of its products and softmax. Several ranks: DistributedDataParallel over gloo.
One line of JSON for each rank, as the house's.
"""

import json
import os
import resource
import sys
import time

import numpy as np
import torch
import torch.distributed as distributed
import torch.nn as nn
import torch.nn.functional as F

WARM_STEPS, BATCHES = 5, 8


def resident(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key + ":"))


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Block(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = [z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(c, 2)]
        if self.fused:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            a = F.softmax(((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).masked_fill(mask, float("-inf")), -1) @ v
        x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, n, fused):
        super().__init__()
        self.tokens, self.places = nn.Embedding(n["vocabulary"], n["width"]), nn.Embedding(n["length"], n["width"])
        self.blocks = nn.ModuleList([Block(n["width"], n["heads"], fused) for _ in range(n["layers"])])
        self.norm, self.head = nn.LayerNorm(n["width"]), nn.Linear(n["width"], n["vocabulary"], bias=False)
        self.mask = torch.ones(n["length"], n["length"]).triu(1).bool()  # not a buffer: gloo cannot broadcast bool

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x)).flatten(0, 1)


def mlp(n):
    layers, wide = [], n["features"]
    for _ in range(n["hidden_layers"]):
        layers += [nn.Linear(wide, n["hidden"]), nn.ReLU()]
        wide = n["hidden"]
    return nn.Sequential(*layers, nn.Linear(wide, n["classes"]))


def load_parameters(net, folder):
    """Ours are (in, out), torch's (out, in). Names differ in form only."""
    ours, at = {}, 0
    values = np.fromfile(os.path.join(folder, "parameters.f32"), np.float32)
    with open(os.path.join(folder, "parameters.txt"), encoding="utf-8") as file:
        for line in file:
            name, *dims = line.split()
            dims = list(map(int, dims))
            ours[name] = torch.from_numpy(values[at:at + int(np.prod(dims))].reshape(dims).copy())
            at += int(np.prod(dims))
    loaded = set()

    def put(name, tensor, transposed=False):
        with torch.no_grad():
            tensor.copy_(ours[name].t() if transposed else ours[name])
        loaded.add(name)

    def linear(name, layer):
        put(name + "/w", layer.weight, True)
        put(name + "/b", layer.bias)

    def norm(name, layer):
        put(name + "/gain", layer.weight)
        put(name + "/bias", layer.bias)

    if isinstance(net, Gpt):
        put("tokens", net.tokens.weight)
        put("places", net.places.weight)
        for i, block in enumerate(net.blocks):
            for name in ("norm1", "norm2"):
                norm(f"block{i}/{name}", getattr(block, name))
            for name in ("qkv", "out", "up", "down"):
                linear(f"block{i}/{name}", getattr(block, name))
        norm("norm", net.norm)
        put("head", net.head.weight, True)
    else:
        layers = [layer for layer in net if isinstance(layer, nn.Linear)]
        for i, layer in enumerate(layers):
            linear("out" if i + 1 == len(layers) else f"layer{i}/linear", layer)
    if loaded != set(ours):
        sys.exit(f"parameters differ: {loaded ^ set(ours)}")


def run(rank, model, how, attention, folder, n, port):
    torch.set_num_threads(n["threads"])
    torch.ones(256, 256) @ torch.ones(256, 256)  # its threads stand
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    resting = resident("VmRSS")
    ranks, gpt = n["ranks"], model == "gpt"
    net = Gpt(n, attention == "fused") if gpt else mlp(n)
    load_parameters(net, folder)
    inputs = np.fromfile(os.path.join(folder, "inputs"), np.int32 if gpt else np.float32).reshape(BATCHES, n["batch"], -1)
    labels = np.fromfile(os.path.join(folder, "labels.i32"), np.int32).reshape(BATCHES, n["batch"], -1)
    share = n["batch"] // ranks
    mine = slice(rank * share, (rank + 1) * share)
    batches = [(torch.from_numpy(x[mine].astype(np.int64 if gpt else np.float32)), torch.from_numpy(y[mine].reshape(-1).astype(np.int64)))
               for x, y in zip(inputs, labels)]
    del inputs, labels
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-4) if gpt else torch.optim.SGD(net.parameters(), 0.01)
    if how == "compiled":
        net = torch.compile(net)
    seconds, losses, processor = [], [], 0
    for step in range(WARM_STEPS + n["steps"]):
        x, y = batches[step % BATCHES]
        if step == WARM_STEPS:
            if ranks > 1:
                distributed.barrier()
            processor = processor_seconds()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step >= WARM_STEPS:
            seconds.append(time.perf_counter() - begin)
        losses.append(value)
    processor = (processor_seconds() - processor) / n["steps"]
    if ranks > 1:  # ours is the loss of the global batch
        all_losses = torch.tensor(losses, dtype=torch.float64)
        distributed.all_reduce(all_losses)
        losses = (all_losses / ranks).tolist()
    seconds.sort()
    line = {"rank": rank, "median_ms": seconds[len(seconds) // 2] * 1e3, "min_ms": seconds[0] * 1e3, "processor_ms": processor * 1e3,
            "resting_kib": resting, "peak_kib": resident("VmHWM"), "losses": losses[:20], "version": torch.__version__}
    os.write(1, (json.dumps(line) + "\n").encode())
    if ranks > 1:
        distributed.destroy_process_group()


def main():
    model, how, attention, folder = sys.argv[1:5]
    n = {key: int(value) for key, value in (argument.split("=", 1) for argument in sys.argv[5:])}
    if n["ranks"] == 1:
        run(0, model, how, attention, folder, n, 0)
        return
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (model, how, attention, folder, n, port), nprocs=n["ranks"])


if __name__ == "__main__":
    main()
