# SPDX-License-Identifier: Apache-2.0
"""Which rank reads which rows, in tables and in simulated trainings. No torch, no processes."""

import collections
import random

import pytest

from af.train import _agreement, _dealing
from af.train._dealing import Dealing


@pytest.mark.parametrize(
    "remaining, batch, world, drop_last, expected",
    [
        (1000, 64, 4, False, 64),
        (64, 64, 4, False, 64),
        (40, 64, 4, False, 40),  # the tail
        (3, 64, 4, False, 3),
        (67, 64, 4, False, 67),  # 3 rows would be left for 4 ranks
        (68, 64, 4, False, 64),
        (67, 64, 3, False, 64),
        (67, 64, 4, True, 64),
        (63, 64, 4, True, 0),
        (0, 64, 4, False, 0),
        (5, 2, 4, False, 2),  # a batch smaller than the world: some ranks have no rows
        (3, 2, 4, False, 3),
        (1, 1, 4, False, 1),
    ],
)
def test_rows_of_a_step(remaining, batch, world, drop_last, expected):
    assert _dealing.rows_of_step(remaining, batch, world, drop_last) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_steps_of_an_epoch_are_those_that_come(batch, drop_last):
    for world in (1, 2, 3, 4, 9):
        for count in range(0, 150):
            left, steps = count, 0
            while True:
                size = _dealing.rows_of_step(left, batch, world, drop_last)
                if not size:
                    break
                left, steps = left - size, steps + 1
            assert steps == _dealing.steps_of_epoch(count, batch, world, drop_last)
            assert drop_last or left == 0


def natural(count):
    return lambda epoch: [(row + epoch) % count for row in range(count)]


def test_the_rows_of_a_step_are_the_same_at_every_world_size():
    for world in (1, 2, 3, 4):
        ranks = [Dealing(natural(100), 16) for _ in range(world)]
        steps = []
        while True:
            shares = [d.begin(r, world, 0) for r, d in enumerate(ranks)]
            if shares[0] is None:
                break
            steps.append(sorted(row for share in shares for row in share))
            for d in ranks:
                d.complete()
        order = natural(100)(0)
        assert steps == [sorted(order[i : i + 16]) for i in range(0, 100, 16)]


def test_a_batch_for_each_rank():
    ranks = [Dealing(natural(100), 16, per_rank=True) for _ in range(3)]
    assert [len(d.begin(r, 3, 0)) for r, d in enumerate(ranks)] == [16, 16, 16]
    assert ranks[0].position == 48


def test_rows_of_a_rank_that_vanished_come_at_the_end():
    ranks = [Dealing(natural(20), 6) for _ in range(3)]
    shares = [d.begin(r, 3, 0) for r, d in enumerate(ranks)]
    state = ranks[0].as_json(3)
    for rank, was in enumerate((0, 2)):
        dealing = ranks[was]
        dealing.adopt(state)
        dealing.hand_over([0, 2], was, True)
        assert dealing.share(was) == shares[was]
        assert dealing.deal.expected() == 4
        dealing.complete()
    seen = shares[0] + shares[2]
    while True:
        dealt = [ranks[was].begin(rank, 2, 1) for rank, was in enumerate((0, 2))]
        if dealt[0] is None:
            break
        seen += dealt[0] + dealt[1]
    assert sorted(seen) == list(range(20))
    assert set(shares[1]) <= set(seen[-4:])


def test_a_rank_that_had_not_begun_the_step_takes_its_share_of_it():
    begun, late = Dealing(natural(20), 6), Dealing(natural(20), 6)
    begun.begin(0, 2, 0)
    late.adopt(begun.as_json(2))
    late.hand_over([0, 1], 1, False)
    assert late.begin(1, 2, 1) == natural(20)(0)[1:6:2]


def test_the_end_of_an_epoch_is_told_as_the_next_one():
    done = Dealing(natural(6), 6)
    done.begin(0, 1, 0)
    done.complete()
    assert done.as_json(1) == {"epoch": 1, "position": 0, "late": [], "deal": None}


def standing(state, steps, in_step=False, reports=0):
    return _agreement.Standing(state, steps, in_step, reports, 0)


@pytest.mark.parametrize(
    "standings, expected",
    [
        # fresh, furthest, source, begun, receivers, reports
        ([standing(False, 0)] * 3, (True, -1, 0, False, [1, 2], 0)),
        # The first world was lost before its first step; some have been given rows.
        ([standing(False, 0), standing(False, 0, True)], (True, -1, 1, True, [0], 0)),
        ([standing(True, 5, False, 2)] * 2, (False, 5, 0, False, [], 2)),
        # One is a step behind; of the furthest, one has begun the next step.
        (
            [standing(True, 4, True), standing(True, 5), standing(True, 5, True)],
            (False, 5, 2, True, [0], 0),
        ),
        ([standing(True, 4, True), standing(True, 5)], (False, 5, 1, False, [0], 0)),
        # A new rank knows of fewer reports, or counts from a checkpoint; it does not matter.
        ([standing(True, 5, False, 3), standing(False, 9)], (False, 5, 0, False, [1], 3)),
    ],
)
def test_what_ranks_conclude(standings, expected):
    assert tuple(_agreement.conclude(standings)) == expected


# --- A simulated training: ranks that are at most one step apart, losses and joins at any moment


class Rank:
    def __init__(self, count, batch):
        self.dealing = Dealing(natural(count), batch)
        self.steps, self.has_state, self.share_of = 0, False, {}
        self.rows = None  # of the step that it is in

    def standing(self):
        in_step = self.dealing.in_progress() and self.dealing.taken
        return _agreement.Standing(self.has_state, self.steps, in_step, 0, 0)


class Training:
    def __init__(self, draw, count, batch, epochs, size):
        self.draw, self.count, self.batch, self.epochs = draw, count, batch, epochs
        self.ranks = [Rank(count, batch) for _ in range(size)]
        self.generation = -1
        self.trained = collections.defaultdict(collections.Counter)
        self.meet()

    def meet(self, fails=False):
        """As Session._meet(); `fails`: it completes on some ranks only."""
        self.generation += 1
        size = len(self.ranks)
        for number, rank in enumerate(self.ranks):
            rank.share_of[self.generation] = number
        verdict = _agreement.conclude([rank.standing() for rank in self.ranks])
        source = self.ranks[verdict.source]
        told = source.dealing.as_json(size)
        shares = None
        if verdict.begun:
            shares = [rank.share_of.get(told["deal"][3]) for rank in self.ranks]
        for number, rank in enumerate(self.ranks):
            if fails and self.draw.random() < 0.5:
                continue
            current = rank.has_state and rank.steps == verdict.furthest
            taken = current and rank.dealing.in_progress() and rank.dealing.taken
            rank.dealing.adopt(told)
            if rank.dealing.in_progress():
                rank.dealing.hand_over(shares, shares[number], taken)
            if not taken:
                rank.rows = None
            if not fails:
                rank.steps, rank.has_state = max(verdict.furthest, 0), True

    def take_rows(self, number):
        """The rank asks for its next batch; False at the end of all epochs."""
        rank = self.ranks[number]
        while rank.dealing.epoch < self.epochs:
            rows = rank.dealing.begin(number, len(self.ranks), self.generation)
            if rows is not None:
                rank.rows = rows
                return True
            rank.dealing.begin_epoch(rank.dealing.epoch + 1)
        return False

    def lose(self):
        gone = self.draw.sample(range(len(self.ranks)), self.draw.randint(1, len(self.ranks) - 1))
        self.ranks = [rank for number, rank in enumerate(self.ranks) if number not in gone]
        while self.draw.random() < 0.3:
            self.meet(fails=True)
            if len(self.ranks) > 1 and self.draw.random() < 0.5:
                self.ranks.pop(self.draw.randrange(len(self.ranks)))
        self.meet()

    def step(self):
        """False when the training is over."""
        draw = self.draw
        for number in draw.sample(range(len(self.ranks)), len(self.ranks)):
            if self.ranks[number].rows is None and not self.take_rows(number):
                return False
            if len(self.ranks) > 1 and draw.random() < 0.02:
                self.lose()  # some are in the step, some are not
                return True
        # The reduction: all have contributed. It completes on all, or on some before the world ends.
        deal = self.ranks[0].dealing.deal
        assert all(rank.dealing.deal.as_json() == deal.as_json() for rank in self.ranks)
        assert sum(len(rank.rows) for rank in self.ranks) == deal.expected()
        for rank in self.ranks:
            self.trained[rank.dealing.epoch].update(rank.rows)
        partly = len(self.ranks) > 1 and draw.random() < 0.05
        completes = [not partly or draw.random() < 0.5 for _ in self.ranks]
        if not any(completes):
            completes[0] = True
        for rank, complete in zip(self.ranks, completes):
            if complete:
                rank.steps += 1
                rank.dealing.complete()
                rank.rows = None
        if partly:
            # Whoever knows that the step is done must live: else it is done again, for nobody has it.
            able = [rank for rank, complete in zip(self.ranks, completes) if complete]
            stay = [r for r in self.ranks if r is able[0] or draw.random() < 0.7]
            for number, rank in enumerate(self.ranks):
                if rank is able[0] and draw.random() < 0.5:
                    self.take_rows(number)  # it has gone on already
            self.ranks = stay
            self.meet()
        elif draw.random() < 0.05:
            self.ranks += [Rank(self.count, self.batch) for _ in range(draw.randint(1, 3))]
            self.meet()
        return True


@pytest.mark.parametrize("seed", range(300))
def test_every_row_once_in_an_epoch_whatever_happens(seed):
    draw = random.Random(seed)
    count, batch = draw.randint(5, 200), draw.randint(1, 40)
    training = Training(draw, count, batch, epochs=4, size=draw.randint(1, 6))
    for _ in range(10_000):
        if not training.step():
            break
    else:
        pytest.fail("the training does not end")
    for epoch in range(4):
        counter = training.trained[epoch]
        assert sorted(counter) == list(range(count)), f"epoch {epoch}: rows are missing"
        assert max(counter.values()) == 1, f"epoch {epoch}: rows came twice"
