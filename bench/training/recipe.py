"""A job file as a twin of the trainer reads it: its keys, the rates of its steps, the order of its samples, first values of its parameters.

What is here is written from docs/training.md and checked by the twins: where one of these differs, so do the losses of the first steps.
"""

import array
import json
import math
import tomllib

# The keys that a twin understands, as `ropewalk train --help` begins them.
DEFAULTS = {
    "model": {"kind": "mlp", "maps": 32, "layers": 4, "width": 256, "heads": 4, "length": 128, "tied": False},
    "data": {"kind": "fashion-mnist", "path": "", "held_out": 0.1},
    "train": {"ranks": 1, "batch": 128, "epochs": 0, "steps": 0, "seed": 1, "threads": 0},
    "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "decay_of": "all",
                  "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "schedule": "constant", "warmup_steps": 0, "decay_steps": 0,
                  "final_fraction": 0.0, "step_every": 0, "step_factor": 0.1},
}


def read(path):
    """{section: {key: value}}; a key that a twin would have to ignore ends the program."""
    with open(path, "rb") as file:
        given = tomllib.load(file)
    given.pop("checkpoint", None)  # changes nothing that is learnt
    for section, values in given.items():
        for key in values:
            if key not in DEFAULTS.get(section, {}):
                raise SystemExit(f"error[BENCH07] {path}: a twin does not know {section}.{key}")
    return {section: values | given.get(section, {}) for section, values in DEFAULTS.items()}


def steps_of(train, samples):
    return train["steps"] or (train["epochs"] or 1) * math.ceil(samples / train["batch"])


def learning_rate(optimizer, step, steps):
    rate, warm = optimizer["learning_rate"], optimizer["warmup_steps"]
    if step < warm:
        return rate * (step + 1) / warm
    if optimizer["schedule"] == "constant":
        return rate
    if optimizer["schedule"] == "step":
        return rate * optimizer["step_factor"] ** ((step - warm) // optimizer["step_every"])
    done = min(1.0, (step - warm) / (optimizer["decay_steps"] or max(1, steps - warm)))
    left = 1 - done if optimizer["schedule"] == "linear" else (1 + math.cos(math.pi * done)) / 2
    return rate * (optimizer["final_fraction"] + (1 - optimizer["final_fraction"]) * left)


WORD = (1 << 64) - 1


def mix(x):
    """The finaliser of splitmix64."""
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 & WORD
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb & WORD
    return x ^ (x >> 31)


def combine(a, b):
    return mix((a + 0x9e3779b97f4a7c15 + mix(b)) & WORD)


def drawn_words(seed):
    """xoshiro256**, seeded by splitmix64."""
    state = [mix((seed + (i + 1) * 0x9e3779b97f4a7c15) & WORD) for i in range(4)]

    def rotate(x, k):
        return (x << k | x >> (64 - k)) & WORD

    while True:
        yield rotate(state[1] * 5 & WORD, 7) * 9 & WORD
        third = state[1] << 17 & WORD
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= third
        state[3] = rotate(state[3], 45)


def order_of(seed, epoch, samples):
    """Fisher and Yates, as the trainer's sampler shuffles each epoch. (Lemire's correction of a bias of samples / 2^64 is left out.)"""
    order, words = list(range(samples)), drawn_words(combine(combine(seed, 0x73616d706c657273), epoch))
    for i in range(samples, 1, -1):
        k = next(words) * i >> 64
        order[i - 1], order[k] = order[k], order[i - 1]
    return order


def batches(train, samples):
    """The numbers of the samples of each step."""
    size, epoch, order = min(train["batch"], samples), 0, []
    for _ in range(steps_of(train, samples)):
        if not order:
            order, epoch = order_of(train["seed"], epoch, samples), epoch + 1
        yield order[:size]
        order = order[size:]


def tensors_of(path):
    """{name: (shape, array of floats)} of the f32 tensors of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    found = {}
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["dtype"] == "F32":
            found[name] = (tensor["shape"], array.array("f", data[slice(*tensor["data_offsets"])]))
    return found
