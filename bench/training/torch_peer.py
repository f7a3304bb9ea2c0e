#!/usr/bin/env python3
"""Steps of training by PyTorch, from the parameters and batches that `bench_training prepare` wrote.

usage: torch_peer.py mlp|gpt|lstm|dlrm|resnet eager|compiled VARIANT FOLDER steps=N ranks=N threads=N batch=N KEY=NUMBER...

Variants. gpt: fused, torch's own scaled_dot_product_attention instead of its products and softmax, or plain. dlrm: one table of all rows
(stacked) or one EmbeddingBag for each (tables), with dense or sparse gradients. resnet: images and kernels with their channels_last, or
plain. Others: plain. Several ranks: DistributedDataParallel over gloo; its batch norms are of each rank's own samples.
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


class Lstm(nn.Module):
    """Steps come first, as nn.LSTM has them: the ids are turned, and the states once."""

    def __init__(self, n):
        super().__init__()
        self.tokens = nn.Embedding(n["vocabulary"], n["width"])
        self.lstm = nn.LSTM(n["width"], n["cells"], n["layers"])
        self.head = nn.Linear(n["cells"], n["vocabulary"])

    def forward(self, ids):
        y, _ = self.lstm(self.tokens(ids.t()))
        return self.head(y.transpose(0, 1)).flatten(0, 1)


class Dlrm(nn.Module):
    def __init__(self, n, variant):
        super().__init__()
        stacked, sparse = variant.startswith("stacked"), variant.endswith("sparse")

        def perceptron(wide, widths):
            layers = []
            for width in widths:
                layers += [nn.Linear(wide, width), nn.ReLU()]
                wide = width
            return layers

        self.bottom = nn.Sequential(*perceptron(n["features"], [512, 256, 64, n["vector"]]))
        vectors = n["tables"] + 1
        wide = n["vector"] + vectors * (vectors - 1) // 2
        self.top = nn.Sequential(*perceptron(wide, [512, 256]), nn.Linear(256, 1))
        if stacked:
            self.tables = nn.Embedding(n["tables"] * n["rows"], n["vector"], sparse=sparse)
            self.first = torch.arange(n["tables"]) * n["rows"]
        else:
            self.tables = nn.ModuleList([nn.EmbeddingBag(n["rows"], n["vector"], mode="sum", sparse=sparse) for _ in range(n["tables"])])
        self.lower = torch.tril_indices(vectors, vectors, -1)

    def forward(self, dense, ids):
        x = self.bottom(dense)
        if isinstance(self.tables, nn.Embedding):
            vectors = self.tables(ids + self.first)
        else:
            vectors = torch.stack([table(ids[:, k:k + 1]) for k, table in enumerate(self.tables)], 1)
        z = torch.cat([x.unsqueeze(1), vectors], 1)
        pairs = torch.bmm(z, z.transpose(1, 2))[:, self.lower[0], self.lower[1]]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


class Residual(nn.Module):
    def __init__(self, wide, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.by = stride > 1 or wide != out
        if self.by:
            self.conv_by, self.norm_by = nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (self.norm_by(self.conv_by(x)) if self.by else x))


class ResNet(nn.Module):
    """For small images, 6 n + 2 deep."""

    def __init__(self, n):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks, wide = nn.ModuleDict(), 16
        for stage in range(3):
            for block in range((n["depth"] - 2) // 6):
                out = 16 << stage
                self.blocks[f"stage{stage + 1}/block{block}"] = Residual(wide, out, 2 if stage > 0 and block == 0 else 1)
                wide = out
        self.out = nn.Linear(wide, n["classes"])

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        for block in self.blocks.values():
            x = block(x)
        return self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))


def read_parameters(folder):
    """Tensors by name."""
    ours, at = {}, 0
    values = np.fromfile(os.path.join(folder, "parameters.f32"), np.float32)
    with open(os.path.join(folder, "parameters.txt"), encoding="utf-8") as file:
        for line in file:
            name, *dims = line.split()
            dims = list(map(int, dims))
            ours[name] = torch.from_numpy(values[at:at + int(np.prod(dims))].reshape(dims).copy())
            at += int(np.prod(dims))
    return ours


def put_parameters(net, ours):
    """Ours are (in, out), torch's (out, in). Names differ in form only."""
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
    elif isinstance(net, ResNet):
        put("stem/conv/w", net.conv.weight)
        norm("stem/norm", net.norm)
        for name, block in net.blocks.items():
            for number in ("1", "2", "_by") if block.by else ("1", "2"):
                put(f"{name}/conv{number}/w", getattr(block, "conv" + number).weight)
                norm(f"{name}/norm{number}", getattr(block, "norm" + number))
        linear("out", net.out)
    elif isinstance(net, Lstm):
        put("tokens", net.tokens.weight)
        for k in range(net.lstm.num_layers):
            for ours_name, name in (("w_ih", "weight_ih"), ("w_hh", "weight_hh"), ("b_ih", "bias_ih"), ("b_hh", "bias_hh")):
                put(f"lstm/layer{k}/{ours_name}", getattr(net.lstm, f"{name}_l{k}"))
        linear("head", net.head)
    elif isinstance(net, Dlrm):
        for part, layers in (("bottom", net.bottom), ("top", net.top)):
            layers = [layer for layer in layers if isinstance(layer, nn.Linear)]
            for k, layer in enumerate(layers):
                linear("out" if part == "top" and k + 1 == len(layers) else f"{part}{k}", layer)
        if isinstance(net.tables, nn.Embedding):
            put("tables", net.tables.weight)
        else:
            with torch.no_grad():
                for table, rows in zip(net.tables, ours["tables"].chunk(len(net.tables))):
                    table.weight.copy_(rows)
            loaded.add("tables")
    else:
        layers = [layer for layer in net if isinstance(layer, nn.Linear)]
        for i, layer in enumerate(layers):
            linear("out" if i + 1 == len(layers) else f"layer{i}/linear", layer)
    if loaded != set(ours):
        sys.exit(f"parameters differ: {loaded ^ set(ours)}")


def make(model, variant, n):
    if model == "gpt":
        return Gpt(n, variant == "fused")
    if model == "resnet":
        return ResNet(n).to(memory_format=torch.channels_last) if variant == "channels_last" else ResNet(n)
    return Lstm(n) if model == "lstm" else Dlrm(n, variant) if model == "dlrm" else mlp(n)


def run(rank, model, how, variant, folder, n, port):
    torch.set_num_threads(n["threads"])
    torch.ones(256, 256) @ torch.ones(256, 256)  # its threads stand
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    resting = resident("VmRSS")
    ranks = n["ranks"]
    net = make(model, variant, n)
    put_parameters(net, read_parameters(folder))
    share = n["batch"] // ranks
    mine = slice(rank * share, (rank + 1) * share)

    def field(name, dtype):
        return [torch.from_numpy(x[mine].astype(np.int64 if dtype == np.int32 else dtype))
                for x in np.fromfile(os.path.join(folder, name), dtype).reshape(BATCHES, n["batch"], -1)]

    if model == "dlrm":
        batches = [((x, ids), y.reshape(-1)) for x, ids, y in zip(field("dense", np.float32), field("ids", np.int32),
                                                                  field("click", np.float32))]
    elif model == "resnet":
        batches = [((x.view(share, 3, n["size"], n["size"]),), y.reshape(-1)) for x, y in zip(field("image", np.float32),
                                                                                          field("label", np.int32))]
        if variant == "channels_last":
            batches = [((x.contiguous(memory_format=torch.channels_last),), y) for (x,), y in batches]
    elif model == "mlp":
        batches = [((x,), y.reshape(-1)) for x, y in zip(field("features", np.float32), field("label", np.int32))]
    else:
        batches = [((x,), y.reshape(-1)) for x, y in zip(field("tokens", np.int32), field("next", np.int32))]
    criterion = F.binary_cross_entropy_with_logits if model == "dlrm" else F.cross_entropy
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        net = nn.parallel.DistributedDataParallel(net)
    if model == "gpt":
        optimizer = torch.optim.AdamW(net.parameters(), 3e-4)
    else:
        optimizer = torch.optim.SGD(net.parameters(), 0.01 if model in ("mlp", "resnet") else 0.1)
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
        loss = criterion(net(*x), y)
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
    model, how, variant, folder = sys.argv[1:5]
    n = {key: int(value) for key, value in (argument.split("=", 1) for argument in sys.argv[5:])}
    if n["ranks"] == 1:
        run(0, model, how, variant, folder, n, 0)
        return
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (model, how, variant, folder, n, port), nprocs=n["ranks"])


if __name__ == "__main__":
    main()
