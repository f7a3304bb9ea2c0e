#!/usr/bin/env python3
"""Exports named PyTorch models to ONNX as people do it to train them elsewhere: training mode, nothing folded, a batch of any size.

usage: export.py [--models mlp,resnet,...] [--exporters torchscript,dynamo] [--full] FOLDER

Each model gives FOLDER/MODEL.EXPORTER.onnx and FOLDER/MODEL.safetensors, which holds what PyTorch computes, in float64:
  input.NAME     what the model was given, NAME as in the ONNX file
  output.I       what it gave
  probe.I        random numbers; the loss is the sum over all outputs of output.I * probe.I
  grad.NAME      the gradient of that loss by the parameter NAME of the PyTorch model (of one that has two names, twice)
and, with --full, the same in float32, as float32.output.I and float32.grad.NAME: how far rounding alone leads away.
Without --full the models have their shapes and tiny sizes: they are the fixtures of tests/data/onnx (versions.txt says what made them).
With it they are ResNet-18 for images of 224, GPT-2 of 124 million parameters, BERT-base, an LSTM of the Penn Treebank's size, a DLRM of
26 tables and an MLP, for bench_onnx (compare.cc), which imports them and compares.
The MLP by the dynamo exporter keeps its weights in a file of its own (external data), as all do by that exporter with --full, and there is
a third MLP in opset 14.

Needs torch, onnx, onnxscript, safetensors, and transformers for gpt2 and bert.
"""

import argparse
import copy
import os
import sys
import warnings

import onnx
import safetensors.torch
import torch
from torch import nn

BATCH = 3


class Mlp(nn.Module):
    def __init__(self, full):
        super().__init__()
        features, hidden, classes = (784, 512, 10) if full else (6, 8, 4)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.GELU(),
                                    nn.LayerNorm(hidden), nn.Dropout(0.0), nn.Linear(hidden, classes))
        self.inputs = {"x": torch.randn(BATCH, features)}

    def forward(self, x):
        return torch.log_softmax(self.layers(x), dim=-1)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.skip = None
        if stride != 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.skip is None else self.skip(x)))


class ResNet(nn.Module):
    """ResNet-18 (He et al. 2016), or its first two stages with one block each."""

    def __init__(self, full):
        super().__init__()
        widths, blocks, size, classes = ([64, 128, 256, 512], 2, 224, 1000) if full else ([4, 6], 1, 16, 3)
        self.stem = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        self.pool = nn.MaxPool2d(3, 2, 1)
        layers, before = [], widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(before, width, 2 if stage > 0 and block == 0 else 1))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, classes)
        self.inputs = {"image": torch.randn(BATCH, 3, size, size)}

    def forward(self, image):
        x = self.pool(torch.relu(self.bn(self.stem(image))))
        return self.head(torch.flatten(self.average(self.blocks(x)), 1))


class Gpt2(nn.Module):
    def __init__(self, full):
        super().__init__()
        import transformers

        sizes = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12} if full else {
            "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
        config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
                                         attn_implementation="eager", bos_token_id=0, eos_token_id=0)
        self.gpt = transformers.GPT2LMHeadModel(config)
        self.inputs = {"ids": torch.randint(0, sizes["vocab_size"], (BATCH, min(128, sizes["n_positions"])))}

    def forward(self, ids):
        # Without a mask the model looks for packed sequences, by an op that the older exporter does not know.
        mask = torch.ones_like(ids) if torch.jit.is_tracing() else None
        return self.gpt(input_ids=ids, attention_mask=mask, use_cache=False).logits


class Bert(nn.Module):
    def __init__(self, full):
        super().__init__()
        import transformers

        sizes = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                 "intermediate_size": 3072, "max_position_embeddings": 512} if full else {
            "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
            "max_position_embeddings": 8, "type_vocab_size": 2}
        # Without a padding token: PyTorch gives its row no gradient, of which the ONNX file says nothing.
        config = transformers.BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                                         attn_implementation="eager", pad_token_id=None)
        self.bert = transformers.BertModel(config)
        length = 128 if full else 6
        mask = torch.ones(BATCH, length, dtype=torch.int64)
        mask[1, length - 2:] = 0
        self.inputs = {"ids": torch.randint(0, sizes["vocab_size"], (BATCH, length)), "mask": mask}

    def forward(self, ids, mask):
        out = self.bert(input_ids=ids, attention_mask=mask)
        return out.last_hidden_state, out.pooler_output


class Lstm(nn.Module):
    def __init__(self, full):
        super().__init__()
        vocabulary, width, length = (10000, 650, 35) if full else (7, 5, 4)
        self.table = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.inputs = {"ids": torch.randint(0, vocabulary, (BATCH, length))}

    def forward(self, ids):
        hidden, _ = self.lstm(self.table(ids))
        return self.head(hidden)


class Dlrm(nn.Module):
    """Naumov et al. 2019: bags of embeddings, a dense tower, products of all pairs, a tower on top."""

    def __init__(self, full):
        super().__init__()
        rows, width, tables, bag = (10000, 16, 26, 4) if full else (9, 4, 2, 2)
        below, above = ([13, 512, 256, 64, width], [512, 256, 1]) if full else ([3, width], [6, 1])
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = self.tower(below)
        pairs = (tables + 1) * tables // 2
        self.top = self.tower([width + pairs] + above)
        self.top[-1] = nn.Sigmoid()
        self.register_buffer("row", torch.tensor([i for i in range(tables + 1) for _ in range(i)]), persistent=False)
        self.register_buffer("column", torch.tensor([j for i in range(tables + 1) for j in range(i)]), persistent=False)
        self.inputs = {"dense": torch.randn(BATCH, below[0]), "indices": torch.randint(0, rows, (BATCH, tables, bag))}

    @staticmethod
    def tower(widths):
        layers = [[nn.Linear(before, after), nn.ReLU()] for before, after in zip(widths, widths[1:])]
        return nn.Sequential(*sum(layers, []))

    def forward(self, dense, indices):
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom] + [bag(indices[:, i]) for i, bag in enumerate(self.bags)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.row, self.column]
        return self.top(torch.cat([bottom, pairs], dim=1))


MODELS = {"mlp": Mlp, "resnet": ResNet, "gpt2": Gpt2, "bert": Bert, "lstm": Lstm, "dlrm": Dlrm}


def computed(model, inputs, dtype, probes=None):
    """What the twin of `model` of that type gives, and the gradients of the loss that the module's docstring describes."""
    twin = copy.deepcopy(model).to(dtype).train()
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    outputs = twin(*given.values())
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    probes = [torch.randn_like(output) for output in outputs] if probes is None else [probe.to(dtype) for probe in probes]
    sum((output * probe).sum() for output, probe in zip(outputs, probes)).backward()
    values = {f"output.{i}": output.detach() for i, output in enumerate(outputs)}
    values |= {f"grad.{name}": p.grad for name, p in twin.named_parameters(remove_duplicate=False) if p.grad is not None}
    return given, probes, values


def expected(model, inputs, full):
    given, probes, values = computed(model, inputs, torch.float64)
    values |= {f"input.{name}": value for name, value in given.items()}
    values |= {f"probe.{i}": probe for i, probe in enumerate(probes)}
    if full:
        values |= {f"float32.{name}": value for name, value in computed(model, inputs, torch.float32, probes)[2].items()}
    return {name: value.clone().contiguous() for name, value in values.items()}


def export(name, model, inputs, exporter, path, full):
    model = copy.deepcopy(model).train()
    names = list(inputs)
    if exporter in ("torchscript", "opset14"):
        opset = 17 if exporter == "torchscript" else 14
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=False, opset_version=opset, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.TRAINING, input_names=names,
                          dynamic_axes={n: {0: "batch"} for n in names})
    else:
        batch = torch.export.Dim("batch", min=2, max=4096)
        torch.onnx.export(model, tuple(inputs.values()), path, dynamo=True, opset_version=18, optimize=False, input_names=names,
                          dynamic_shapes=tuple({0: batch} for _ in names), external_data=False)
    strip(path)
    if exporter == "dynamo" and (full or name == "mlp"):
        proto = onnx.load(path)
        onnx.save(proto, path, save_as_external_data=True, location=os.path.basename(path) + ".data", size_threshold=0)
        os.chmod(path + ".data", 0o644)


def strip(path):
    """Drops what is there for people only: traces of the exporting machine, which also make the files large."""
    proto = onnx.load(path, load_external_data=False)
    del proto.metadata_props[:]
    proto.doc_string = ""

    def clean(graph):
        graph.doc_string = ""
        for node in graph.node:
            node.doc_string = ""
            if hasattr(node, "metadata_props"):
                del node.metadata_props[:]
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    clean(attribute.g)
        for value in [*graph.value_info, *graph.input, *graph.output, *graph.initializer]:
            if hasattr(value, "metadata_props"):
                del value.metadata_props[:]
        del graph.value_info[:]
        if hasattr(graph, "metadata_props"):
            del graph.metadata_props[:]

    clean(proto.graph)
    for function in proto.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
        del function.metadata_props[:]
        del function.value_info[:]
    onnx.save(proto, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--exporters", default="torchscript,dynamo")
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.makedirs(arguments.folder, exist_ok=True)
    failed = []
    for name in arguments.models.split(","):
        torch.manual_seed(7)
        model = MODELS[name](arguments.full).train()
        inputs = model.inputs
        del model.inputs
        values = os.path.join(arguments.folder, f"{name}.safetensors")
        safetensors.torch.save_file(expected(model, inputs, arguments.full), values)
        os.chmod(values, 0o644)
        exporters = arguments.exporters.split(",")
        if name == "mlp":
            exporters.append("opset14")  # in which layer norm has no op of its own yet
        for exporter in exporters:
            path = os.path.join(arguments.folder, f"{name}.{exporter}.onnx")
            try:
                export(name, model, inputs, exporter, path, arguments.full)
                print(f"{path}: {os.path.getsize(path)} bytes")
            except Exception as error:  # one exporter that cannot take one model is not the end of the others
                failed.append(f"{name} by {exporter}: {type(error).__name__}: {str(error)[:2000]}")
    with open(os.path.join(arguments.folder, "versions.txt"), "w", encoding="utf-8") as file:
        file.write(f"bench/onnx/export.py with torch {torch.__version__}, onnx {onnx.__version__}, ")
        import onnxscript

        file.write(f"onnxscript {onnxscript.__version__}, ")
        try:
            import transformers

            file.write(f"transformers {transformers.__version__}\n")
        except ImportError:
            file.write("no transformers\n")
    for line in failed:
        print(f"error[EXPORT01] {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
