#!/usr/bin/env python3
"""Draws a log of clicks that a model can learn, and says how well anybody could: the AUC of the probabilities that clicks were drawn by.

usage: make_clicks.py [--rows 60000] [--seed 1] > clicks.csv      (the AUC goes to stderr)

A user clicks an item by chance. The log odds are a constant, a line in the price, what the user and the item add, and, most of it, the
product of two numbers of the user and two of the item: no sum over columns has that, pairs of a DLRM's vectors do. One user in fifty is
not known.
"""

import argparse
import math
import random
import sys


def auc(scores, labels):
    """Of all pairs of a 1 and a 0 the part in which the 1 has the larger score."""
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    positives = sum(labels)
    ranks = sum(rank for rank, i in enumerate(order, 1) if labels[i])
    return (ranks - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)

    def who():
        return draw.gauss(0, 0.4), (draw.gauss(0, 1.2), draw.gauss(0, 1.2))

    users = [who() for _ in range(args.users)]
    items = [who() for _ in range(args.items)]
    scores, clicks = [], []
    print("price,user,item,click")
    for _ in range(args.rows):
        user, item, price = draw.randrange(args.users), draw.randrange(args.items), draw.lognormvariate(2, 0.6)
        known = draw.random() >= 0.02
        bias, likes = users[user] if known else (0, (0, 0))
        score = -1 - 0.05 * price + bias + items[item][0] + sum(a * b for a, b in zip(likes, items[item][1]))
        click = int(draw.random() < 1 / (1 + math.exp(-score)))
        scores.append(score)
        clicks.append(click)
        print(f"{price:.2f},{f'user{user}' if known else ''},item{item},{click}")
    possible = auc(scores, clicks)
    print(f"{sum(clicks)} clicks in {len(clicks)} rows; AUC of the probabilities that they were drawn by: {possible:.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
