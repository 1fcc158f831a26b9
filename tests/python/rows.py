# SPDX-License-Identifier: Apache-2.0
"""Reads what programs/rows.py has written down."""

import collections
import re


def read(directory):
    """[(worker, mark, epoch, step, world size, rows)]"""
    found = []
    for path in sorted(directory.glob("rows-*.txt")):
        worker = int(path.stem.split("-")[1])
        for line in path.read_text().splitlines():
            head, _, rows = line.partition(" | ")
            mark, epoch, step, size = head.split()
            found.append(
                (worker, mark, int(epoch), int(step), int(size), [int(r) for r in rows.split()])
            )
    return found


def faults(directory, rows, epochs, killed=()):
    """What is wrong, in words: rows of an epoch that were not trained on exactly once.

    A worker that was killed between its two marks of a step may have taken part in it or not.
    """
    lines = read(directory)
    counts = collections.defaultdict(collections.Counter)
    doubtful = []
    for worker in {line[0] for line in lines}:
        own = [line for line in lines if line[0] == worker]
        for line in own:
            if line[1] == "!":
                counts[line[2]].update(line[5])
        if worker in killed and own and own[-1][1] == "?":
            doubtful.append(own[-1])
    wrong = []
    for epoch in range(epochs):
        for chosen in [[]] + [[d] for d in doubtful] + [doubtful]:
            counter = collections.Counter(counts[epoch])
            for line in chosen:
                if line[2] == epoch:
                    counter.update(line[5])
            missing = [r for r in range(rows) if counter[r] == 0]
            twice = [r for r in counter if counter[r] > 1]
            if not missing and not twice:
                break
        else:
            wrong.append(f"epoch {epoch}: missing {missing[:9]} ({len(missing)}), twice {twice[:9]} ({len(twice)})")
    return wrong


def finals(text):
    """(final loss, sum of parameters, learning rate, steps) that a worker printed, or None."""
    match = re.search(r"FINAL (\S+) (\S+) (\S+) (\d+)", text)
    return match and (float(match[1]), float(match[2]), float(match[3]), int(match[4]))
